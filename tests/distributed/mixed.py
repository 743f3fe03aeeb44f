"""Photos of every kind that a folder may hold, some of them corrupt, made from a few real ones."""

from pathlib import Path

from PIL import Image


def _save(image: Image.Image, path: Path, **options) -> None:
    image.save(path, **options)


def _turned(image: Image.Image, path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    image.save(path, exif=exif)


# How each kind is written, by the end of its file's name.
_KINDS = [
    (".jpg", _save),
    (".png", _save),
    ("_grey.jpg", lambda image, path: _save(image.convert("L"), path)),
    ("_palette.png", lambda image, path: _save(image.quantize(32), path)),
    ("_alpha.png", lambda image, path: _save(image.convert("RGBA"), path)),
    ("_turned.jpg", _turned),
    ("_cmyk.jpg", lambda image, path: _save(image.convert("CMYK"), path)),
    ("_tiny.png", lambda image, path: _save(image.resize((3, 2)), path)),
    ("_wide.jpg", lambda image, path: _save(image.resize((400, 4)), path)),
    (".webp", _save),
]


def make_mixed_photos(folder: Path, count: int, corrupt: int, photos: list[Path]) -> list[str]:
    """Write so many photos in folders of a hundred; return the ids of the corrupt ones."""
    bases = [Image.open(path).convert("RGB").resize((96, 72)) for path in photos]
    chosen = {place * count // corrupt + place % len(_KINDS) for place in range(corrupt)}
    broken = []
    for number in range(count):
        ending, write = _KINDS[number % len(_KINDS)]
        path = folder / f"{number // 100:02}" / f"{number:05}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        base = bases[number % len(bases)]
        left, top = number * 7 % 32, number * 5 % 24
        write(base.crop((left, top, left + 64, top + 48)), path)
        if number in chosen:
            content = path.read_bytes()
            kinds = [content[: len(content) // 2], b"", b"no photo at all"]
            path.write_bytes(kinds[len(broken) % len(kinds)])
            broken.append(path.relative_to(folder).as_posix())
    return broken
