"""Inputs of many kinds for runs over many of them, and rows to compare."""

from pathlib import Path

from PIL import Image

from tests.saved import make_dot, make_photo
from whence.distributed import ResultFolder, RunSettings
from whence.methods import MethodSpecification
from whence.pipeline import ExplainSettings

KINDS = ("jpeg", "png", "grey", "palette", "alpha", "turned", "cmyk", "tiny", "wide")


def write_photo(folder: Path, number: int) -> Path:
    """Write a photo of one of the kinds, all different."""
    kind = KINDS[number % len(KINDS)]
    photo = make_photo(40 + number % 23, 30 + number % 17, seed=number)
    options = {}
    if kind in ("grey", "palette", "cmyk"):
        photo = photo.convert({"grey": "L", "palette": "P", "cmyk": "CMYK"}[kind])
    elif kind == "alpha":
        photo.putalpha(Image.new("L", photo.size, 128))
    elif kind == "turned":
        exif = Image.Exif()
        exif[0x0112] = 6
        options["exif"] = exif
    elif kind == "tiny":
        photo = photo.resize(make_dot().size)
    elif kind == "wide":
        photo = photo.resize((400, 4))
    suffix = "jpg" if kind in ("jpeg", "turned", "cmyk") else "png"
    path = folder / f"{number:04}-{kind}.{suffix}"
    photo.save(path, **options)
    return path


def write_photos(folder: Path, count: int, broken: tuple[int, ...] = ()) -> list[str]:
    """Write photos of all kinds, of which some are broken; return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for number in range(count):
        path = write_photo(folder, number)
        names.append(path.name)
        if number in broken:
            content = path.read_bytes()
            path.write_bytes(content[: len(content) // 3] if number % 2 else b"no photo")
    return names


def make_settings(model: object = None, method: str = "rollout", **options) -> RunSettings:
    """Settings of a run with small batches and parts."""
    rows = ("scores", "part_rows", "threads", "column", "id", "kind")
    of_rows = {name: options.pop(name) for name in rows if name in options}
    how = {"batch": 4, **options}
    explain = ExplainSettings(
        (MethodSpecification(method, method),), None if model is None else str(model), **how
    )
    return RunSettings(explain, **{"part_rows": 4, **of_rows})


def read_rows(folder: object) -> dict[str, dict]:
    """Read all rows by their ids, each of which must be there once."""
    rows = list(ResultFolder(str(folder)).read_rows())
    by_id = {row["id"]: row for row in rows}
    assert len(by_id) == len(rows)
    return by_id
