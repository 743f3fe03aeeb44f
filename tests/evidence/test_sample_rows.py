"""Which arguments of a model hold one row for each sample."""

import pytest
import torch
from torch import nn

from tests.two_inputs import OneSequence, TwoTowers, make_pair
from tests.zoo import CASES, build_model
from whence import WhenceError
from whence.evidence import sample_rows
from whence.evidence.sample_rows import SampleRows
from whence.inputs.arguments import ModelArguments


def find(model, inputs, of=None, output=None, rows=None):
    arguments = ModelArguments.from_inputs(inputs, model, of)
    found = (rows or SampleRows()).find(model, arguments, output, arguments.explained_names)
    return None if found is None else set(found.per_sample)


@pytest.mark.parametrize("name", CASES)
def test_samples_of_common_models_are_apart(name):
    case = CASES[name]
    inputs = case.inputs()
    names = {0} if isinstance(inputs, torch.Tensor) else set(inputs)
    assert find(build_model(case), inputs) == names


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_in_other_types(dtype):
    model = build_model(CASES["timm-vit-fused"]).to(dtype)
    pixels = CASES["timm-vit-fused"].inputs().to(dtype)
    assert find(model, pixels) == {0}
    assert find(Mixing(model, 0.5), pixels) is None


class Mixing(nn.Module):
    """Adds some of the batch's mean to each sample."""

    def __init__(self, model: nn.Module, share: float) -> None:
        super().__init__()
        self.model, self.share = model, share

    def forward(self, x):
        return self.model(x + self.share * x.mean(0))


@pytest.mark.parametrize("batch", [1, 2, 3, 30])
@pytest.mark.parametrize("share", [1.0, 1e-3])
def test_samples_that_depend_on_each_other(batch, share):
    model = build_model(CASES["timm-vit-fused"]).double()
    pixels = (
        CASES["timm-vit-fused"].inputs().double()[:1]
        * torch.linspace(1, 2, batch)[:, None, None, None].double()
    )
    assert find(model, pixels) == {0}
    assert find(Mixing(model, share), pixels) is None


@pytest.mark.parametrize(("images", "texts"), [(1, 1), (2, 2), (3, 3), (2, 3), (20, 20), (20, 3)])
def test_what_is_compared_with_everything_is_not_cut(images, texts):
    model, inputs = TwoTowers(), make_pair(images, texts)
    assert find(model, inputs, "pixels") == {"pixels"}
    assert find(model, inputs, "ids") == {"ids"}
    assert find(model, inputs, ["ids", "pixels"]) is None


def test_what_belongs_together_is_cut_together():
    inputs = make_pair(3, 3)
    for of in ("pixels", "ids", ["ids", "pixels"]):
        assert find(OneSequence(), inputs, of) == {"ids", "pixels"}


class Masked(TwoTowers):
    """Texts have a mask of their own."""

    def forward(self, pixels, ids, mask):
        kept = self.embed(ids) * mask[..., None]
        text = self.texts(kept).sum(1) / mask.sum(1, keepdim=True)
        return {"logits": text @ self.images(self.embed(pixels)).mean(1).T}


def test_a_mask_goes_with_its_text():
    inputs = {**make_pair(3, 3), "mask": torch.ones(3, 5).tril(2)}
    assert find(Masked(), inputs, "ids") == {"ids", "mask"}


class WithBoxes(nn.Module):
    """Looks up how wide the box of each token is; a box that ends before it starts is an error."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.widths = nn.Embedding(9, 4), nn.Embedding(20, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids, boxes):
        widths = self.widths(boxes[..., 1] - boxes[..., 0])
        return self.head((self.words(ids) + widths).mean(1))


def test_the_corners_of_a_box_stay_together():
    ids = torch.arange(10).reshape(2, 5) % 9
    starts = torch.arange(10).reshape(2, 5)
    boxes = torch.stack([starts, starts + 1 + ids], -1)
    assert find(WithBoxes(), {"ids": ids, "boxes": boxes}, "ids") == {"ids", "boxes"}


class WithTable(nn.Module):
    """Looks samples up in a table that is given, too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(4, 3)

    def forward(self, x, table):
        return self.head(torch.softmax(x @ table.T, -1) @ table + x)


@pytest.mark.parametrize("rows", [3, 4, 20])
def test_a_table_that_has_as_many_rows_by_chance(rows):
    torch.manual_seed(0)
    inputs = {"x": torch.randn(rows, 4), "table": torch.randn(rows, 4)}
    assert find(WithTable(), inputs, "x") == {"x"}


def test_logits_that_depend_on_the_size_of_the_batch():
    model = nn.Linear(4, 3)
    x = torch.randn(3, 4)
    assert find(model, x, output=lambda logits: logits / len(logits)) is None
    assert find(model, x, output=lambda logits: logits[:1].expand(3, -1)) is None
    assert find(model, x, output=lambda logits: logits[:, :2]) == {0}
    assert find(model, x, output=lambda logits: logits * torch.rand(3)) is None  # at random


def test_a_model_that_fails_on_fewer_samples():
    def for_three(logits):
        assert len(logits) == 3
        return logits

    assert find(nn.Linear(4, 3), torch.randn(3, 4), output=for_three) is None


def test_a_proof_is_remembered_by_names_and_shapes(monkeypatch):
    calls = []
    prove = sample_rows._prove
    monkeypatch.setattr(sample_rows, "_prove", lambda *a: (calls.append(1), prove(*a))[1])
    rows, model = SampleRows(), TwoTowers()
    for images, texts, of in ((2, 3, "pixels"), (4, 3, "pixels"), (2, 3, "pixels")):
        assert find(model, make_pair(images, texts), of, rows=rows) == {"pixels"}
    assert len(calls) == 1  # a batch of another size is cut alike
    find(model, make_pair(3, 3), "pixels", rows=rows)
    find(model, make_pair(2, 3), "ids", rows=rows)
    find(model, make_pair(2, 4), "pixels", rows=rows)
    assert len(calls) == 4


def test_the_user_states_it():
    rows = SampleRows(("mask",))
    inputs = {"x": torch.randn(3, 4), "mask": torch.ones(3), "table": torch.ones(3)}
    assert find(WithTable(), inputs, "x", rows=rows) == {"x", "mask"}
    with pytest.raises(WhenceError, match=r"'mask', which has shape \(2,\) and not one row .* 3"):
        find(WithTable(), {**inputs, "mask": torch.ones(2)}, "x", rows=rows)
    with pytest.raises(WhenceError, match="'mask', which is no tensor of the inputs; they"):
        find(WithTable(), {"x": inputs["x"]}, "x", rows=rows)


def test_running_out_of_memory_is_no_proof():
    def fail(_):
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError):
        find(nn.Linear(4, 3), torch.randn(3, 4), output=fail)
