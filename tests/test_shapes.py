"""The small CLIP of the examples: its pictures, what it knows, and where its maps lie."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, CLIPModel

from whence import Explainer

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "shapes_clip"


def load_script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "training" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def scenes():
    yield load_script("scenes")
    del sys.modules["scenes"]


@pytest.fixture(scope="module")
def drawn(scenes):
    return scenes.draw_scenes(40, torch.Generator().manual_seed(7), size=(64, 64))


@pytest.fixture(scope="module")
def clip():
    model = CLIPModel.from_pretrained(FOLDER).float().eval()
    return model, AutoTokenizer.from_pretrained(FOLDER)


def test_a_mask_covers_the_pixels_of_its_color(scenes, drawn):
    for n, things in enumerate(drawn.name_things()):
        for m, thing in enumerate(things):
            found = drawn.pixels[n][:, drawn.masks[n, m]].mean(1)
            distances = {
                name: float((found - torch.tensor(color)).norm())
                for name, color in scenes.COLORS.items()
            }
            assert min(distances, key=distances.get) == thing.color
            assert 60 < drawn.masks[n, m].sum() < 1000


def test_shapes_do_not_touch_and_absent_ones_have_no_mask(drawn):
    assert int(drawn.masks.sum(1).max()) == 1
    assert torch.equal(drawn.masks.flatten(2).any(2), drawn.present)


def test_a_caption_holds_where_each_of_its_things_is_found(scenes, drawn):
    captions = [
        [scenes.Phrase("red", "square")],
        [scenes.Phrase("blue", None)],
        [scenes.Phrase(None, "star")],
        [scenes.Phrase("green", "cross"), scenes.Phrase("orange", "circle")],
        *[things[:2] for things in drawn.name_things()[:8]],
    ]
    matches = scenes.find_matches(captions, drawn)
    for row, phrases in zip(matches, captions, strict=True):
        for holds, things in zip(row, drawn.name_things(), strict=True):
            expected = all(
                any(
                    phrase.color in (None, thing.color) and phrase.shape in (None, thing.shape)
                    for thing in things
                )
                for phrase in phrases
            )
            assert bool(holds) == expected


def test_captions_are_english(scenes):
    pair = [scenes.Phrase("orange", "star"), scenes.Phrase("red", None)]
    assert scenes.write_caption(pair, "there is ") == "there is an orange star and a red shape"


def test_the_card_says_what_was_measured():
    figures = json.loads((FOLDER / "training.json").read_text())
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    said = re.findall(r"^\| (.+?) \| ([\d.]+) % \|", card, re.MULTILINE)
    assert len(said) == 3
    for name, percent in said:
        assert float(percent) == round(100 * figures[name], 1), name


def test_it_knows_pictures_it_has_not_seen(scenes, clip):
    model, tokenizer = clip
    new = scenes.draw_scenes(100, torch.Generator().manual_seed(8), size=(64, 64), fewest=2)
    kinds = [scenes.Phrase(color, shape) for color in scenes.COLOR_NAMES for shape in scenes.SHAPES]
    tokens = tokenizer([kind.write() for kind in kinds], padding=True, return_tensors="pt")
    with torch.no_grad():
        fits = model(
            input_ids=tokens["input_ids"],
            attention_mask=tokens["attention_mask"],
            pixel_values=(new.pixels - 0.5) / 0.5,
        ).logits_per_image
    right = [
        kinds[n] in things for n, things in zip(fits.argmax(1), new.name_things(), strict=True)
    ]
    assert sum(right) >= 80


def test_its_maps_follow_the_text(scenes, clip):
    """Two texts on one picture: each map's peak lies on its own shape, more often than not."""
    model, tokenizer = clip
    new = scenes.draw_scenes(20, torch.Generator().manual_seed(9), size=(64, 64), fewest=2, most=2)
    patches = torch.nn.functional.max_pool2d(new.masks.float(), 8).flatten(2) > 0
    names = [thing.write() for things in new.name_things() for thing in things]
    tokens = tokenizer(names, padding=True, return_tensors="pt")
    inputs = {
        "input_ids": tokens["input_ids"],
        "attention_mask": tokens["attention_mask"],
        "pixel_values": (new.pixels - 0.5) / 0.5,
    }
    hits = []
    for shape in (0, 1):
        rows = [2 * n + shape for n in range(20)]
        against = [2 * n + 1 - shape for n in range(20)]
        result = Explainer(model).explain(inputs, rows, against=against, of="pixel_values")
        assert result.grid == (8, 8)
        peak = result.scores.argmax(1, keepdim=True)
        hits += patches[:, shape].gather(1, peak)[:, 0].tolist()
    assert sum(hits) >= 30  # of 40; chance is about 8
