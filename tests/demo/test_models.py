"""The embedded models are small, accurate, and worth explaining."""

import csv
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import whence
from whence import Explainer, methods

DEMO = Path(whence.__file__).parent / "demo"
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def pets():
    return transformers.ViTForImageClassification.from_pretrained(DEMO / "pets").float().eval()


@pytest.fixture(scope="module")
def sentiment():
    folder = DEMO / "sentiment"
    model = transformers.BertForSequenceClassification.from_pretrained(folder).float().eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(("name", "most"), [("pets", 8e6), ("sentiment", 12e6), ("stories", 12e6)])
def test_they_are_small_and_hold_no_pickles(name, most):
    files = list((DEMO / name).iterdir())
    assert {file.suffix for file in files} <= {".json", ".safetensors", ".md"}
    assert sum(file.stat().st_size for file in files) <= most


# pets --------------------------------------------------------------------------------------------


def pet_rows(data: Path) -> list[dict[str, str]]:
    with (data / "pets160" / "labels.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["split"] == "test"]


def pixels(data: Path, row: dict[str, str]) -> Tensor:
    numpy, pillow = pytest.importorskip("numpy"), pytest.importorskip("PIL.Image")
    image = pillow.open(data / "pets160" / "images" / f"{row['image']}.jpg").convert("RGB")
    array = torch.from_numpy(numpy.array(image.resize((160, 160)))).permute(2, 0, 1)
    return (array.float() / 255 - 0.5) / 0.5


def test_cats_are_told_from_dogs(data, pets):
    rows = random.Random(0).sample(pet_rows(data), 120)
    with torch.no_grad():
        logits = pets(pixel_values=torch.stack([pixels(data, row) for row in rows])).logits
    named = [pets.config.id2label[int(i)] for i in logits.argmax(1)]
    right = sum(name == row["species"] for name, row in zip(named, rows, strict=True))
    assert right / len(rows) >= 0.95


def mosaic(cat: Tensor, dog: Tensor, dim: int, cat_first: bool) -> Tensor:
    """The middle halves of two photos, side by side or stacked."""
    halves = [photo.narrow(dim, 40, 80) for photo in (cat, dog)]
    return torch.cat(halves if cat_first else halves[::-1], dim)


@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.slow)])
def test_maps_of_mosaics_are_class_specific(data, pets, count):
    """The map for cat has more of its weight on the cat's half than the map for dog has."""
    rows, chance = pet_rows(data), random.Random(1)
    cats = chance.sample([row for row in rows if row["species"] == "cat"], count)
    dogs = chance.sample([row for row in rows if row["species"] == "dog"], count)
    made, where = [], []
    for n, (cat, dog) in enumerate(zip(cats, dogs, strict=True)):
        dim, cat_first = (2, 1)[n % 2], n % 4 < 2
        made.append(mosaic(pixels(data, cat), pixels(data, dog), dim, cat_first))
        where.append((dim - 1, 0 if cat_first else 8))
    right = 0
    for start in range(0, count, 20):
        batch = torch.stack(made[start : start + 20])
        result = Explainer(pets).explain({"pixel_values": batch}, classes=["cat", "dog"])
        for scores, (dim, first) in zip(result.scores, where[start : start + 20], strict=True):
            maps = scores.reshape(2, 16, 16)
            on_cat = [one.narrow(dim, first, 8).sum() / one.sum() for one in maps]
            right += bool(on_cat[0] > on_cat[1])
    assert right >= 0.95 * count


# sentiment ---------------------------------------------------------------------------------------


def dev_sentences(data: Path) -> list[tuple[str, int]]:
    with (data / "sst2" / "dev.tsv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    return [(text.strip(), int(label)) for text, label in rows]


def probabilities(sentiment, texts: list[str]) -> Tensor:
    model, tokenizer = sentiment
    batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        return model(**batch).logits.softmax(1)


def test_sentiment_is_told(data, sentiment):
    texts, labels = zip(*dev_sentences(data), strict=True)
    predicted = probabilities(sentiment, list(texts)).argmax(1)
    assert (predicted == torch.tensor(labels)).float().mean() >= 0.84


def test_deleting_the_words_that_count_changes_the_sentiment(data, sentiment):
    model, tokenizer = sentiment
    chance = random.Random(0)
    texts = [text for text, _ in dev_sentences(data) if len(text.split()) >= 10][:150]
    before = probabilities(sentiment, texts)
    predicted = before.argmax(1)
    batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    result = Explainer(model).explain(batch)
    without_top, without_random = [], []
    for n in range(len(texts)):
        words = result.words(n)
        count = max(1, len(words) // 5)
        ranked = sorted(range(len(words)), key=lambda i: -words[i][1])
        for chosen, kept in (
            (ranked[:count], without_top),
            (chance.sample(range(len(words)), count), without_random),
        ):
            kept.append(" ".join(w for i, (w, _) in enumerate(words) if i not in chosen))

    def drop(changed: list[str]) -> float:
        after = probabilities(sentiment, changed)
        rows = torch.arange(len(texts))
        return float((before[rows, predicted] - after[rows, predicted]).mean())

    assert drop(without_top) > 3 * drop(without_random)
    assert drop(without_top) > 0.2


# every method ------------------------------------------------------------------------------------

QUICK = {
    "integrated_gradients": {"steps": 6},
    "rise": {"masks": 64},
    "smoothgrad": {"samples": 4},
    "search": {"budget": 6},
}
MANY_PASSES = (
    "attention_flow",
    "dave",
    "decompx",
    "occlusion",
    "rise",
    "search",
    "value_zeroing",
    "vit_cx",
)
EVERY = [
    pytest.param(name, marks=[pytest.mark.slow] if name in MANY_PASSES else [])
    for name in methods.available("image")
]


def unlike(one: Tensor, other: Tensor) -> float:
    """How far two maps of a batch are apart, each scaled to absolute sum 1: from 0 to 2."""
    maps = [m / m.abs().sum(-1, keepdim=True).clamp(min=1e-12) for m in (one, other)]
    return float((maps[0] - maps[1]).abs().sum(-1).min())


@pytest.mark.parametrize("method", EVERY)
def test_maps_differ_between_classes_where_a_method_says_so(pets, method):
    pillow = pytest.importorskip("PIL.Image")
    cat = torch.tensor(np.array(pillow.open(DEMO / "cat.jpg").convert("RGB").resize((160, 160))))
    cat = (cat.permute(2, 0, 1).float() / 255 - 0.5) / 0.5
    options = QUICK.get(method, {})
    result = Explainer(pets).explain(
        {"pixel_values": cat[None]}, classes=["cat", "dog"], method=method, **options
    )
    apart = unlike(result.scores[:, 0], result.scores[:, 1])
    assert result.class_specific == methods.describe(method).class_specific
    if result.class_specific:
        assert apart > 0.001
    else:
        assert apart < 1e-6


SPECIFIC = [name for name in methods.available("image") if methods.describe(name).class_specific]


@pytest.mark.slow
@pytest.mark.parametrize("method", SPECIFIC)
def test_maps_of_mosaics_by_every_method(data, pets, method):
    """Of cats and dogs side by side, maps of the two classes are unlike each other."""
    rows, chance = pet_rows(data), random.Random(2)
    cats = chance.sample([row for row in rows if row["species"] == "cat"], 4)
    dogs = chance.sample([row for row in rows if row["species"] == "dog"], 4)
    batch = torch.stack(
        [
            mosaic(pixels(data, cat), pixels(data, dog), 2, True)
            for cat, dog in zip(cats, dogs, strict=True)
        ]
    )
    result = Explainer(pets).explain(
        {"pixel_values": batch}, classes=["cat", "dog"], method=method, **QUICK.get(method, {})
    )
    assert unlike(result.scores[:, 0], result.scores[:, 1]) > 0.001  # relevance hardly differs
