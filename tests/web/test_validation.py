"""Photos and texts that cannot be read are refused in a sentence."""

import io
import struct
import zipfile
import zlib

import pytest
from PIL import Image

from tests.web.client import RefusedError


def make_chunk(kind, content):
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def make_png(width, height, data=b""):
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = make_chunk(b"IHDR", header), make_chunk(b"IDAT", data), make_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def make_zip_bomb():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("settings.json", b"0" * 50_000_000)
    return out.getvalue()


def make_large_png():
    """A small file whose picture is large, of one colour."""
    out = io.BytesIO()
    Image.new("L", (8000, 8000)).save(out, "PNG")
    return out.getvalue()


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (make_png(50_000, 50_000), "a.png", "million pixels"),
        (make_large_png(), "a.png", "million pixels"),
        (make_png(64, 64, zlib.compress(b"\0" * 100)), "a.png", "damaged"),
        (make_zip_bomb(), "a.png", "not a photo"),
        (SVG, "a.svg", "not a photo"),
        (SVG, "a.png", "not a photo"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "a.png", "not a photo"),
        (b"GIF89a" + b"\xff" * 40, "a.gif", "not a photo"),
        (b"", "a.png", "not a photo"),
        (b"hello", "../../../../etc/cron.d/a.png", "not a photo"),
    ],
)
def test_photos_that_are_none(client, content, name, message):
    given = client.upload(content, name, "image/png")
    with pytest.raises(RefusedError, match=message):
        client.call("explain_image", "photos", given, [], ["random"], "")


def test_a_text_that_is_too_long(client):
    with pytest.raises(RefusedError, match="5,000 characters"):
        client.call("explain_text", "texts", "a " * 4000, [], ["random"], "")


@pytest.mark.parametrize("text", ["", "   ", None, 7, ["a"], {"a": 1}, "\0", "[PAD]"])
def test_texts_that_are_none(client, text):
    with pytest.raises(RefusedError):
        client.call("explain_text", "texts", text, [], ["random"], "")
