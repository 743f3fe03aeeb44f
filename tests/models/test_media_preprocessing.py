"""Videos and sounds are prepared by transformers' processors, and drawn as the model saw them."""

import numpy as np
import pytest
import torch

from tests.saved_media import (
    RATE,
    draw_frames,
    make_sound,
    save_audio_model,
    save_gif,
    save_video_model,
    save_wav,
)
from whence import WhenceError, compare, explain
from whence.inputs.sounds import Recording
from whence.inputs.videos import VideoClip
from whence.models import load
from whence.models.description import describe_model


@pytest.fixture(scope="module")
def video_model(tmp_path_factory):
    return load(save_video_model(tmp_path_factory.mktemp("video")))


@pytest.fixture(scope="module")
def audio_model(tmp_path_factory):
    return load(save_audio_model(tmp_path_factory.mktemp("audio")))


def test_a_model_of_videos(video_model):
    assert (video_model.kind, video_model.class_count) == ("video", 3)
    prepared = video_model.prepare([VideoClip.from_frames(draw_frames())])
    assert prepared.inputs.shape == (1, 4, 3, 16, 16)
    assert prepared.notes == [["the model saw 4 of the video's 6 frames, evenly spaced"]]
    # Frames 0, 2, 3 and 5 of six, whose normalisation is undone.
    levels = prepared.media[0].frames[:, 8, 8, 0].tolist()
    assert levels == [0, 80, 120, 200]
    assert not prepared.media[0].is_stretched


def test_a_short_video_repeats_frames(video_model):
    prepared = video_model.prepare([VideoClip.from_frames(draw_frames(2))])
    assert prepared.media[0].frames[:, 8, 8, 0].tolist() == [0, 0, 40, 40]
    assert "repeatedly" in prepared.notes[0][0]


def test_vivit_has_another_scale(tmp_path):
    loaded = load(save_video_model(tmp_path, "Vivit"))
    prepared = loaded.prepare([VideoClip.from_frames(draw_frames(4))])
    assert prepared.media[0].frames[:, 8, 8, 0].tolist() == [0, 40, 80, 120]


def test_the_one_liner_explains_videos(video_model, tmp_path):
    path = save_gif(tmp_path / "a.gif", draw_frames(4))
    by_path = explain(path, model=video_model)
    assert (by_path.grid, by_path.axes[0]) == ((2, 2, 2), "frame")
    assert by_path.media[0].frames.shape == (4, 16, 16, 3)
    by_frames = explain(draw_frames(4), model=video_model)
    array = np.stack([np.asarray(one) for one in draw_frames(4)])
    by_array = explain(array, model=video_model)
    assert torch.equal(by_frames.scores, by_array.scores)
    bare = explain(
        draw_frames(4), model=video_model.model, processor=video_model.preprocessor.processor
    )
    assert torch.equal(by_frames.scores, bare.scores)


def test_the_one_liner_explains_sounds(audio_model, tmp_path):
    path = save_wav(tmp_path / "a.wav", make_sound())
    result = explain(path, model=audio_model)
    assert (result.axes, result.length) == (("time",), 800)
    assert result.media[0].seconds == 800 / RATE
    by_array = explain(make_sound(), model=audio_model)
    assert torch.allclose(by_array.scores, result.scores, rtol=1e-2)
    bare = explain(path, model=audio_model.model, processor=audio_model.preprocessor.processor)
    assert torch.equal(bare.scores, result.scores)


def test_the_rate_is_not_changed(audio_model):
    with pytest.raises(WhenceError, match="has 8000 values a second, and the model needs 16000"):
        audio_model.prepare([Recording(make_sound().astype(np.float32), 8000)])
    assert audio_model.prepare([Recording(make_sound().astype(np.float32), None)]).notes == [[]]


def test_sounds_of_different_lengths_are_explained_apart(audio_model):
    with pytest.raises(WhenceError, match="different lengths"):
        explain([make_sound(800), make_sound(900)], model=audio_model)
    assert len(explain([make_sound(800), make_sound(800)], model=audio_model)) == 2


@pytest.mark.parametrize(("family", "seconds"), [("AST", 0.12), ("Whisper", 1.0)])
def test_spectrograms_know_their_time(tmp_path, family, seconds):
    loaded = load(save_audio_model(tmp_path, family))
    sound = Recording(make_sound(2 * RATE).astype(np.float32), RATE)
    prepared = loaded.prepare([sound])
    (seen,) = prepared.media
    assert len(seen.values) == 8
    assert seen.seconds == pytest.approx(seconds)
    assert prepared.notes == [[f"the model heard only the first {seconds:.3g} s of 2 s"]]
    result = loaded.explain(prepared, method="gae")
    assert result.axes[0] == "time"
    features = prepared.inputs[0].T if family == "AST" else prepared.inputs[0]
    assert np.allclose(result.media[0].values, features, atol=1e-6)


def test_wrong_kinds_are_refused(video_model, audio_model):
    with pytest.raises(WhenceError, match="explains videos, not sounds"):
        explain(make_sound(), model=video_model)
    with pytest.raises(WhenceError, match="explains sounds, not images"):
        explain(draw_frames(1)[0], model=audio_model)
    with pytest.raises(WhenceError, match="came without its feature extractor"):
        explain(make_sound(), model=audio_model.model)
    with pytest.raises(WhenceError, match="carries no model for sounds"):
        explain(make_sound())


def test_speech_recognisers_are_refused_with_a_way(tmp_path):
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    from tests.families.media import CONVOLUTIONS, SMALL

    config = Wav2Vec2Config(**SMALL, **CONVOLUTIONS, vocab_size=10)
    Wav2Vec2ForCTC(config).save_pretrained(tmp_path)
    with pytest.raises(WhenceError, match=r"writes down speech.*targets.token"):
        load(tmp_path)


def test_a_model_of_videos_is_described(video_model):
    video = describe_model(video_model)
    assert (video.task, video.grid) == ("classifies videos", [2, 2, 2])
    assert video.input == "videos, prepared as 4 frames of 16x16 pixels"
    assert {"whence", "gae", "tiba", "attnlrp"} <= set(video.methods)


@pytest.mark.slow
def test_a_model_of_sounds_is_described(audio_model):
    sound = describe_model(audio_model)
    assert sound.task == "classifies sounds"
    assert "16000 values a second" in sound.input
    assert {"whence", "gae", "tiba", "attnlrp"} <= set(sound.methods)


def test_methods_are_compared(video_model, audio_model):
    both = compare(draw_frames(4), ["gae", "rollout"], model=video_model)
    assert both["gae"].media is not None
    both = compare(make_sound(), ["gae", "rollout"], model=audio_model)
    assert both["rollout"].axes == ("time",)
    with pytest.raises(WhenceError, match="faithfulness=True is for photos and texts"):
        compare(make_sound(), ["gae"], model=audio_model, faithfulness=True)


def test_a_model_that_is_known_late_still_gets_a_video(video_model, tmp_path, monkeypatch):
    """As with a model that is downloaded from the hub by this very call."""
    path = save_gif(tmp_path / "a.gif", draw_frames(4))
    monkeypatch.setattr("whence.api.reads_videos", lambda model: False)
    assert explain(path, model=video_model).axes == ("frame", "row", "column")
