"""`whence explain` with videos and sounds."""

import pytest
from PIL import Image

from tests.cli.commands import list_files, read_summary, run_explain
from tests.saved_media import (
    draw_frames,
    make_sound,
    save_audio_model,
    save_gif,
    save_video_model,
    save_wav,
)
from whence import Explanation


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("media")
    save_video_model(root / "video")
    save_audio_model(root / "audio")
    save_gif(root / "clip.gif", draw_frames())
    save_wav(root / "sound.wav", make_sound())
    save_wav(root / "wrong.wav", make_sound(), 8000)
    (root / "frames").mkdir()
    for number, frame in enumerate(draw_frames(4)):
        frame.save(root / "frames" / f"{number}.png")
    return root


def test_videos(folders, tmp_path):
    out = tmp_path / "out"
    inputs = (folders / "clip.gif", folders / "frames", "--model", folders / "video")
    entries = read_summary(*inputs, "--out", out)
    assert [entry["kind"] for entry in entries] == ["video", "video"]
    assert set(entries[0]["classes"][0]["top"][0]) == {"frame", "row", "column", "score"}
    assert "4 of the video's 6 frames" in entries[0]["notes"][0]
    expected = {f"{n}.{e}" for n in ("clip", "frames") for e in ("gif", "png", "safetensors")}
    assert set(list_files(out)) == expected | {"summary.json"}
    with Image.open(out / "clip.gif") as image:
        assert image.n_frames == 4
    assert Explanation.load(out / "frames.safetensors").media[0].frames.shape == (4, 16, 16, 3)


def test_sounds(folders, tmp_path):
    out = tmp_path / "out"
    common = ("--model", folders / "audio", "--out", out)
    result = run_explain(folders / "sound.wav", folders / "wrong.wav", *common, code=1)
    assert "needs 16000" in result.output
    assert list_files(out) == ["sound.png", "sound.safetensors", "summary.json"]
    (entry,) = read_summary(folders / "sound.wav", *common, "--force", "--format", "svg")
    assert set(entry["classes"][0]["top"][0]) == {"time", "score"}
    assert "0.05 s" in (out / "sound.svg").read_text(encoding="utf-8")


def test_models_of_other_kinds(folders, tmp_path):
    out = ("--out", tmp_path / "out")
    result = run_explain(folders / "sound.wav", "--model", folders / "video", *out, code=1)
    assert "explains videos, not sounds" in result.output
    result = run_explain(folders / "clip.gif", "--model", folders / "audio", *out, code=1)
    assert "explains sounds, not images" in result.output
    result = run_explain(folders / "sound.wav", *out, code=2)
    assert "no model for sounds" in result.output
    many = ("--format", "parquet", "--out", tmp_path / "many")
    result = run_explain(folders / "frames", "--model", folders / "video", *many, code=2)
    assert "for photos and texts" in result.output
