"""Small datasets as they lie on a disk."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from tests.saved import make_photo

CLASSES = ("cat", "dog", "crane")


def photos(folder: Path, each: int = 3) -> Path:
    """One folder a class, as ImageNet has it."""
    for number, name in enumerate(CLASSES):
        home = folder / "val" / name
        home.mkdir(parents=True)
        for at in range(each):
            make_photo(40 + at, 36, seed=10 * number + at).save(home / f"{name}{at}.png")
    return folder


def masked(folder: Path, count: int = 4) -> Path:
    """Photos with masks, of which the border is ignored."""
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True)
    for at in range(count):
        make_photo(48, 40, seed=at).save(folder / "images" / f"p{at}.png")
        mask = np.zeros((40, 48), dtype=np.uint8)
        mask[8 + at : 30, 10:35] = 1
        mask[7 + at, 10:35] = 255
        Image.fromarray(mask).save(folder / "masks" / f"p{at}.png")
    return folder


def reviews(folder: Path, count: int = 4) -> Path:
    """ERASER: texts with marked words; the last is longer than the model reads."""
    (folder / "docs").mkdir(parents=True)
    lines = []
    for at in range(count):
        words = "the film was very wonderful and it is not bad".split()
        words = words * (12 if at == count - 1 else 2 + at)
        good = at % 2 == 0
        words[3:5] = ["very", "good" if good else "awful"]
        (folder / "docs" / f"r{at}.txt").write_text(" ".join(words))
        evidence = {"docid": f"r{at}.txt", "start_token": 3, "end_token": 5, "text": ""}
        lines.append(
            json.dumps(
                {
                    "annotation_id": f"r{at}.txt",
                    "classification": "POS" if good else "NEG",
                    "evidences": [[evidence]],
                    "docids": None,
                }
            )
        )
    (folder / "test.jsonl").write_text("\n".join(lines) + "\n")
    return folder
