"""Datasets, data loaders and iterators: one explanation for each item, none of them kept."""

import gc
import weakref

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests.saved import make_photo
from tests.zoo import HandWrittenViT
from whence import WhenceError, explain
from whence.models import load

pytestmark = pytest.mark.usefixtures("embedded")
PHOTOS = [make_photo(40 + 8 * seed, 50, seed) for seed in range(4)]
TEXTS = ["a good film", "awful", "very not good ."]


class Labelled(Dataset):
    """A dataset of torch: photos and their labels."""

    def __init__(self, inputs):
        self.inputs = inputs

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], index


@pytest.fixture(scope="module")
def expected(image_model):
    return [explain(photo, image_model) for photo in PHOTOS]


def check(results, expected):
    results = list(results)
    assert len(results) == len(expected)
    for result, one in zip(results, expected, strict=True):
        assert torch.allclose(result.scores, one.scores, rtol=1e-4, atol=1e-6)
        assert result.target_names == one.target_names
        assert [photo.box for photo in result.photos] == [photo.box for photo in one.photos]


def test_an_iterator_of_photos(image_model, expected):
    check(explain(iter(PHOTOS), image_model), expected)
    check(explain(photo for photo in PHOTOS), expected)  # by the embedded model


def test_a_dataset_of_torch(image_model, expected):
    check(explain(Labelled(PHOTOS), image_model), expected)


def test_tensors_of_a_dataset_of_torch_are_samples():
    model, pixels = HandWrittenViT(), torch.rand(2, 3, 32, 32)
    results = list(explain(Labelled(pixels), model))
    assert [len(one) for one in results] == [1, 1]
    together = explain(pixels, model)
    assert torch.allclose(torch.cat([one.scores for one in results]), together.scores, atol=1e-6)


@pytest.mark.slow
def test_a_dataset_of_the_library_datasets(image_model, expected, text_model):
    datasets = pytest.importorskip("datasets")
    photos = datasets.Dataset.from_dict(
        {"id": list("abcd"), "image": PHOTOS, "other": PHOTOS}
    ).cast_column("image", datasets.Image())
    check(explain(photos, image_model), expected)
    check(explain(photos.to_iterable_dataset(), image_model, column="image"), expected)
    texts = datasets.Dataset.from_dict({"review": TEXTS, "label": [1, 0, 0]})
    found = [result.words() for result in explain(texts, text_model)]
    assert found == [explain(text, text_model).words() for text in TEXTS]
    (batch,) = explain(texts.iter(batch_size=3), text_model)
    assert len(batch) == 3
    with pytest.raises(WhenceError, match="No column holds images; the columns are review, label"):
        explain(texts, image_model)
    with pytest.raises(WhenceError, match="several parts: train; explain one of them"):
        explain(datasets.DatasetDict(train=texts), text_model)
    with pytest.raises(WhenceError, match="the Dataset is empty"):
        explain(texts.select([]), text_model)


def test_rows_with_columns(image_model, expected, text_model):
    rows = [{"id": "a", "image": photo, "label": 3} for photo in PHOTOS]
    check(explain(iter(rows), image_model), expected)
    both = {"image": PHOTOS[0], "caption": "a good film"}
    assert next(explain(iter([both]), text_model)).words()[1][0] == "good"
    assert explain(both, text_model).words()[1][0] == "good"
    with pytest.raises(WhenceError, match="No column holds images; the columns are review"):
        explain(iter([{"review": "good"}]), image_model)


def test_a_data_loader_gives_an_explanation_for_each_batch(image_model, expected):
    square = [photo.resize((40, 40)) for photo in PHOTOS]
    loader = DataLoader(Labelled(square), batch_size=3, collate_fn=list)
    first, last = explain(loader, image_model)
    assert (len(first), len(last)) == (3, 1)
    assert len(first.photos) == 3
    whole = explain(square, image_model)
    assert torch.allclose(torch.cat([first.scores, last.scores]), whole.scores, atol=1e-6)


def test_a_data_loader_of_tensors_and_labels():
    pixels, model = torch.randn(5, 3, 32, 32), HandWrittenViT()
    loader = DataLoader(torch.utils.data.TensorDataset(pixels, torch.arange(5)), batch_size=2)
    scores = torch.cat([result.scores for result in explain(loader, model, target=1)])
    assert torch.allclose(scores, explain(pixels, model, target=1).scores, atol=1e-6)


def test_a_data_loader_of_tokens_and_labels(text_model):
    loaded = load(text_model)
    rows = [dict(loaded.prepare([text]).inputs) for text in TEXTS]
    batches = [row | {"labels": torch.tensor([1])} for row in rows]
    for result, text in zip(explain(iter(batches), loaded), TEXTS, strict=True):
        assert torch.equal(result.scores, explain(text, loaded).scores)


def test_explanations_are_computed_when_asked_for_and_not_kept():
    """500 items through a data loader: no batch and no explanation outlives the next one."""
    batches, explanations, read = [], [], []

    class Counted(Dataset):
        def __len__(self):
            return 500

        def __getitem__(self, index):
            read.append(index)
            return torch.full((3, 32, 32), index / 500)

    def collate(items):
        batch = torch.stack(items)
        batches.append(weakref.ref(batch))
        return batch

    loader = DataLoader(Counted(), batch_size=50, collate_fn=collate)
    results = explain(loader, HandWrittenViT(), method="gradient", target=1)
    assert len(read) == 50
    for number, result in enumerate(results):
        explanations.append(weakref.ref(result))
        assert len(read) == 50 * (number + 1)
        assert sum(one() is not None for one in (*batches, *explanations)) <= 4
    del result
    gc.collect()
    assert len(explanations) == 10
    assert all(one() is None for one in (*batches, *explanations))


def test_model_and_input_in_the_wrong_order(image_model):
    for model in (torch.nn.Sequential(HandWrittenViT()), load(image_model)):
        with pytest.raises(WhenceError, match="The input comes first, then the model"):
            explain(model, PHOTOS[0])


def test_mistakes_are_said_at_once_or_with_the_item(image_model):
    with pytest.raises(WhenceError, match="Nothing to explain: the list_iterator is empty"):
        explain(iter([]), image_model)
    with pytest.raises(WhenceError, match=r"'wence'.*Did you mean"):
        explain(iter(PHOTOS), image_model, method="wence")
    with pytest.raises(WhenceError, match=r"'none.jpg' is not there"):
        explain(iter(["none.jpg"]), image_model)
    results = explain(iter([*PHOTOS[:2], 3]), image_model)
    assert len([next(results), next(results)]) == 2
    with pytest.raises(WhenceError, match=r"Item 2: whence explains paths, .* not int"):
        next(results)
    mixed = explain(iter([PHOTOS[0], "a good film"]), image_model)
    next(mixed)
    with pytest.raises(WhenceError, match=r"Item 1: The model .* explains images, not texts"):
        next(mixed)
    with pytest.raises(WhenceError, match="say for which: model="):
        explain(DataLoader(torch.zeros(4, 3, 32, 32)))
