"""Sounds are read from WAV files and arrays."""

import numpy as np
import pytest

from tests.saved_media import make_sound, save_wav
from whence import WhenceError
from whence.inputs.items import read_batch
from whence.inputs.sounds import Recording, read_sound, sound_from_array
from whence.inputs.sources import Source, expand


@pytest.mark.parametrize(("width", "error"), [(1, 1e-2), (2, 1e-4), (3, 1e-6), (4, 1e-6)])
def test_whole_numbers_of_any_width(tmp_path, width, error):
    values = make_sound(200)
    sound = read_sound(save_wav(tmp_path / "a.wav", values, 8000, width))
    assert sound.rate == 8000
    assert np.abs(sound.values - values).max() < error


def test_channels_are_averaged(tmp_path):
    both = np.stack([make_sound(100), np.zeros(100)], 1)
    sound = read_sound(save_wav(tmp_path / "a.wav", both, channels=2))
    assert np.allclose(sound.values, make_sound(100) / 2, atol=1e-4)


def test_arrays():
    values = make_sound(50)
    assert np.allclose(sound_from_array(values).values, values)
    whole = np.round(values * 32768).astype(np.int16)
    assert np.allclose(sound_from_array(whole).values, values, atol=1e-4)
    (sound,) = read_batch({"array": values, "sampling_rate": 100})
    assert (sound.rate, len(sound.values)) == (100, 50)
    (sound,) = read_batch(
        {"audio": {"array": values, "sampling_rate": 100}, "label": 3}, None, "audio"
    )
    assert sound.rate == 100
    (sound,) = read_batch(values)
    assert isinstance(sound, Recording)


def test_wav_files_are_sounds(tmp_path):
    path = save_wav(tmp_path / "a.wav", make_sound(10))
    assert expand([str(path)]) == [Source("audio", path)]
    assert len(expand([str(tmp_path)])) == 1
    (sound,) = read_batch(str(path))
    assert len(sound.values) == 10


def test_what_is_no_sound_is_refused(tmp_path):
    (tmp_path / "b.wav").write_bytes(b"RIFF....WAVE")
    with pytest.raises(WhenceError, match="is no WAV file, or damaged"):
        read_sound(tmp_path / "b.wav")
    content = bytearray(save_wav(tmp_path / "a.wav", make_sound(10)).read_bytes())
    content[20] = 3  # numbers are floats
    (tmp_path / "c.wav").write_bytes(content)
    with pytest.raises(WhenceError, match="pcm_s16le"):
        read_sound(tmp_path / "c.wav")
    with pytest.raises(WhenceError, match="holds no sound"):
        read_sound(save_wav(tmp_path / "d.wav", np.zeros(0)))
    (tmp_path / "e.mp3").write_bytes(b"ID3")
    with pytest.raises(WhenceError, match=r"ffmpeg -i e.mp3 -ac 1 -ar 16000 e.wav"):
        expand([str(tmp_path / "e.mp3")])
    for wrong in (np.zeros((2, 2)), np.zeros(0), np.full(3, np.nan), np.zeros(3, np.int64)):
        with pytest.raises(WhenceError, match="A sound array is"):
            sound_from_array(wrong)


def test_kinds_are_not_mixed(tmp_path):
    path = save_wav(tmp_path / "a.wav", make_sound(10))
    with pytest.raises(WhenceError, match="Texts and sounds need different models"):
        read_batch([path, "A wonderful film."])
