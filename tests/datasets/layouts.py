"""Small datasets in the layouts in which the real ones are published."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from tests.saved import make_photo


def write_photo(path: Path, width: int = 20, height: int = 12, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    make_photo(width, height).save(path, **options)
    return path


def write_mask(path: Path, values: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)
    return path


def write_text(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_json_lines(path: Path, *records: object) -> Path:
    return write_text(path, *map(json.dumps, records))


def break_file(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
