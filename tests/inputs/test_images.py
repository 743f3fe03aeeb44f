import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from tests.saved import make_photo
from whence import WhenceError
from whence.inputs import image_from_array, read_image, to_rgb
from whence.inputs.images import MAX_SIDE


def saved(image: Image.Image, path, **options):
    image.save(path, **options)
    return path


def find_problem(path) -> str:
    with pytest.raises(WhenceError) as raised:
        read_image(path)
    assert path.name in str(raised.value)
    return str(raised.value)


def test_a_photo_is_read_as_it_is(tmp_path):
    image = make_photo()
    assert np.array_equal(read_image(saved(image, tmp_path / "a.png")), image)


def test_missing_files_and_folders(tmp_path):
    assert "is not there" in find_problem(tmp_path / "none.jpg")
    assert "is a folder, not an image" in find_problem(tmp_path)


def test_a_text_file_renamed(tmp_path):
    path = tmp_path / "fake.jpg"
    path.write_text("I am a text.")
    assert "is not an image that Pillow knows" in find_problem(path)
    path.write_bytes(b"")
    assert "is not an image that Pillow knows" in find_problem(path)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "gif", "bmp", "tiff"])
def test_truncated_files(suffix, tmp_path):
    path = saved(make_photo(200, 200), tmp_path / f"cut.{suffix}")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    problem = find_problem(path)
    assert "is damaged" in problem or "is not an image" in problem


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = saved(make_photo(), tmp_path / "mine.png")
    monkeypatch.setattr(Image, "open", lambda *_: (_ for _ in ()).throw(PermissionError()))
    assert "may not be read" in find_problem(path)


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    values = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
    image = read_image(saved(Image.fromarray(values), tmp_path / "deep.png"))
    assert image.mode == "RGB"
    assert np.abs(np.asarray(image)[..., 0] - values / 257).max() <= 0.5


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 0.5, 1]], np.float32), [0, 128, 255]),
        (np.array([[-1, 0, 1]], np.float32), [0, 128, 255]),
        (np.array([[0, 50_000, 100_000]], np.int32), [0, 128, 255]),
        (np.array([[np.nan, 0, 1]], np.float32), [0, 0, 255]),
        (np.zeros((1, 3), np.int32), [0, 0, 0]),
    ],
)
def test_other_deep_images(values, expected, tmp_path):
    image = read_image(saved(Image.fromarray(values), tmp_path / "deep.tiff"))
    assert np.asarray(image)[0, :, 0].tolist() == expected


@pytest.mark.parametrize(("mode", "suffix"), [("P", "png"), ("CMYK", "jpg"), ("L", "jpg")])
def test_palette_cmyk_and_grey(mode, suffix, tmp_path):
    options = {"quality": 95} if suffix == "jpg" else {}
    flat = Image.new("RGB", (16, 16), (204, 51, 51) if mode != "L" else (90, 90, 90))
    image = read_image(saved(flat.convert(mode), tmp_path / f"x.{suffix}", **options))
    assert image.mode == "RGB"
    assert np.abs(np.asarray(image, int) - np.asarray(flat, int)).max() <= 6


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_becomes_white(mode, tmp_path):
    image = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 2, 4))
    read = np.asarray(read_image(saved(image.convert(mode), tmp_path / "clear.png")))
    assert (read[:, :2] == 0).all()
    assert (read[:, 2:] == 255).all()


def test_photos_are_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90 degrees to see it upright
    stored = make_photo(60, 40)
    image = read_image(saved(stored, tmp_path / "turned.png", exif=exif))
    assert np.array_equal(image, stored.rotate(-90, expand=True))


def test_wide_photos_are_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("turned.png", "turned.jpg"):
        path = saved(make_photo(5000, 20), tmp_path / name, exif=exif)
        assert read_image(path).size == (16, 4096)


def test_one_pixel(tmp_path):
    assert read_image(saved(make_photo(1, 1), tmp_path / "dot.png")).size == (1, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as Linux tells it")
def test_a_wide_photo_takes_bounded_memory(tmp_path):
    path = saved(Image.new("RGB", (12_000, 9_000), "teal"), tmp_path / "wide.jpg", quality=20)
    script = (
        "import sys; from whence.inputs import read_image; print(*read_image(sys.argv[1]).size); "
        "print(*[line for line in open('/proc/self/status') if 'VmHWM' in line])"
    )
    told = subprocess.run([sys.executable, "-c", script, path], capture_output=True, check=True)
    width, height, _, kilobytes, _ = told.stdout.split()
    assert (int(width), int(height)) == (MAX_SIDE, 3072)
    decoded = 12_000 * 9_000 * 4
    assert int(kilobytes) * 1024 < decoded * 0.75


def test_more_pixels_than_are_opened(tmp_path):
    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    path = tmp_path / "bomb.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b""))
    assert "more pixels than whence opens" in find_problem(path)


def test_arrays():
    pixels = np.asarray(make_photo())
    for array in (
        pixels,
        pixels / 255,
        (pixels / 255).astype(np.float32),
        pixels[:, ::-1][:, ::-1],
    ):
        assert np.array_equal(image_from_array(array), pixels)
    for grey in (pixels[..., 0], pixels[..., :1]):
        assert np.array_equal(np.asarray(image_from_array(grey))[..., 1], pixels[..., 0])
    clear = np.dstack([pixels, np.zeros_like(pixels[..., 0])])
    assert (np.asarray(image_from_array(clear)) == 255).all()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 8, 8), np.uint8), r"not \(3, 8, 8\). Put the channels last"),
        (np.zeros(5), r"\(height, width, 3\), not \(5,\)"),
        (np.zeros((0, 4, 3), np.uint8), r"is empty: its shape is \(0, 4, 3\)"),
        (np.full((4, 4, 3), 200.0), "values from 0 to 1, and no NaN"),
        (np.full((4, 4, 3), np.nan), "values from 0 to 1, and no NaN"),
        (np.zeros((4, 4, 3), np.int64), "uint8 or floats from 0 to 1, not int64"),
    ],
)
def test_arrays_that_are_no_images(array, message):
    with pytest.raises(WhenceError, match=message):
        image_from_array(array)


def test_images_of_the_user_are_left_alone():
    wide = Image.new("RGB", (5000, 10))
    assert to_rgb(wide).size == (4096, 8)
    assert wide.size == (5000, 10)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_plain_grey_values_in_a_wide_mode_are_not_black(mode):
    grey = Image.new("L", (4, 4), 200)
    assert to_rgb(grey.convert(mode)).getpixel((1, 1)) == (200, 200, 200)
