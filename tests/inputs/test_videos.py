"""Videos are read from pictures that move, folders of frames and arrays."""

import numpy as np
import pytest
from PIL import Image

from tests.saved_media import draw_frames, save_gif
from whence import WhenceError
from whence.inputs.items import read_batch
from whence.inputs.sources import Source, expand
from whence.inputs.videos import VideoClip, choose_evenly, read_video, video_from_array


def list_levels(video: VideoClip) -> list[int]:
    return [one.getpixel((3, 3))[0] for one in video.frames]


@pytest.mark.parametrize("ending", ["gif", "webp", "png"])
def test_pictures_that_move(tmp_path, ending):
    frames = draw_frames()
    options = {"lossless": True} if ending == "webp" else {}
    path = tmp_path / f"a.{ending}"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=50, **options)
    video = read_video(path)
    assert (video.count, list_levels(video)) == (6, [0, 40, 80, 120, 160, 200])
    assert video.frames[0].size == (24, 16)


def test_frames_of_a_folder_are_in_the_order_of_their_numbers(tmp_path):
    for number, frame in enumerate(draw_frames(), 6):
        frame.save(tmp_path / f"f{number}.png")
    (tmp_path / "notes.txt").write_text("no frame")
    assert list_levels(read_video(tmp_path)) == [0, 40, 80, 120, 160, 200]


def test_arrays_and_lists_of_pictures(tmp_path):
    array = np.stack([np.asarray(one) for one in draw_frames()])
    assert list_levels(video_from_array(array)) == [0, 40, 80, 120, 160, 200]
    assert list_levels(video_from_array(array / 255)) == [0, 40, 80, 120, 160, 200]
    (video,) = read_batch(draw_frames(), strings="video")
    assert list_levels(video) == [0, 40, 80, 120, 160, 200]
    (video,) = read_batch(array)
    assert isinstance(video, VideoClip)
    path = save_gif(tmp_path / "a.gif", draw_frames())
    both = read_batch([str(path), array], strings="video")
    assert [len(one.frames) for one in both] == [6, 6]


def test_a_long_video_keeps_some_frames():
    video = video_from_array(np.zeros((1000, 2, 2, 3), np.uint8))
    assert (len(video.frames), video.count) == (256, 1000)


def test_frames_are_chosen_evenly():
    assert choose_evenly(9, 3) == [0, 4, 8]
    assert choose_evenly(2, 4) == [0, 0, 1, 1]
    assert choose_evenly(5, 5) == [0, 1, 2, 3, 4]


def test_what_is_no_video_is_refused(tmp_path):
    still = tmp_path / "a.png"
    draw_frames(1)[0].save(still)
    with pytest.raises(WhenceError, match="it is a photo"):
        read_video(still)
    with pytest.raises(WhenceError, match="two or more"):
        read_video(tmp_path)
    with pytest.raises(WhenceError, match=r"ffmpeg -i film\.mp4"):
        read_video(tmp_path / "film.mp4")
    (tmp_path / "b.gif").write_bytes(b"GIF89a?")
    with pytest.raises(WhenceError, match=r"b\.gif"):
        read_video(tmp_path / "b.gif")
    with pytest.raises(WhenceError, match=r"is \(frames, height, width, 3\)"):
        video_from_array(np.zeros((2, 3, 4, 5)))
    with pytest.raises(WhenceError, match="16x16 to 24x16"):
        VideoClip.from_frames([*draw_frames(2), Image.new("RGB", (16, 16))])


def test_folders_are_expanded_to_videos(tmp_path):
    clips = tmp_path / "clips"
    for name in ("one", "two"):
        (clips / name).mkdir(parents=True)
        for number, frame in enumerate(draw_frames(3)):
            frame.save(clips / name / f"{number}.png")
    expected = [Source("video", clips / "one"), Source("video", clips / "two")]
    assert expand([str(clips)], kind="video") == expected
    assert expand([str(clips / "one")], kind="video") == expected[:1]
    path = save_gif(clips / "a.gif", draw_frames())
    assert expand([str(clips)], kind="video") == [Source("video", path)]
    assert [one.kind for one in expand([str(path)])] == ["image"]
    assert len(expand([str(path)], kind="video")[0].read().frames) == 6


def test_a_folder_is_no_text(tmp_path):
    with pytest.raises(WhenceError, match=r"is a folder; give a list .* kind='video'"):
        read_batch(str(tmp_path))
    for number, frame in enumerate(draw_frames(3)):
        frame.save(tmp_path / f"{number}.png")
    (video,) = read_batch(str(tmp_path), strings="video")
    assert len(video.frames) == 3
