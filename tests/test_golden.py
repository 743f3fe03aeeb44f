"""The authors' own results, from their own code in float64."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.paths import compiler, explain_on
from tests.real import load_real_vit, read_photo
from whence import Explainer, Explanation, Layout

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("vit_a", "vit_b", "bert_a", "bert_b")
TAGS = ("top", "low")
CLASS_TOKEN = Layout(special=(0,))
"""What a tokenizer says of ``[CLS]``."""


@cache
def read_golden(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def compute_error(ours: Tensor, theirs: np.ndarray) -> float:
    """Largest difference, in terms of the largest value."""
    expected = torch.from_numpy(theirs)
    assert ours.shape == expected.shape
    return float((ours - expected).abs().max() / expected.abs().max())


def load_small_model(name: str) -> tuple[nn.Module, object]:
    """One of the small models in its library's own class, and its inputs."""
    data = read_golden(name)
    meta = json.loads(str(data["meta"]))
    weights = {
        key.removeprefix("weights/"): torch.from_numpy(value)
        for key, value in data.items()
        if key.startswith("weights/") and not key.endswith("position_ids")
    }
    if name.startswith("vit"):
        timm = pytest.importorskip("timm")
        sizes = ("img_size", "patch_size", "embed_dim", "depth", "num_heads", "num_classes")
        model = timm.models.VisionTransformer(**{size: meta[size] for size in sizes})
        inputs: object = torch.from_numpy(data["pixel_values"])
    else:
        transformers = pytest.importorskip("transformers")
        meta.pop("seed")
        model = transformers.BertForSequenceClassification(transformers.BertConfig(**meta))
        inputs = {key: torch.from_numpy(data[key]) for key in ("input_ids", "attention_mask")}
    model = model.double()
    model.load_state_dict(weights)
    return model, inputs


def list_targets(name: str) -> Tensor:
    data = read_golden(name)
    count = len(data["logits"])
    return torch.tensor([[int(data[f"{i}/{tag}/target"]) for tag in TAGS] for i in range(count)])


@pytest.fixture(scope="module", params=NAMES)
def name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def result(name) -> Explanation:
    model, inputs = load_small_model(name)
    return Explainer(model).explain(
        inputs, classes=list_targets(name), method="tiba", rules="reference", keep_evidence=True
    )


def test_logits(name, result):
    assert compute_error(result.logits, read_golden(name)["logits"]) < 1e-12


@pytest.mark.parametrize(
    ("kind", "tolerance"), [("attention", 1e-12), ("gradient", 1e-9), ("relevance", 1e-5)]
)
def test_evidence_of_every_block(name, result, kind, tolerance):
    data = read_golden(name)
    values = getattr(result.evidence, kind)
    compared = 0
    for i in range(len(result.scores)):
        for column, tag in enumerate(TAGS):
            for block, value in enumerate(values):
                ours = value[i] if kind == "attention" else value[i, column]
                assert compute_error(ours, data[f"{i}/{tag}/block{block}/{kind}"]) < tolerance
                compared += 1
    expected = [key for key in data if "/block" in key and key.endswith(kind)]
    assert compared == len(expected) > 0


def list_starts(name: str) -> list[int]:
    prefix = "0/top/transformer_attribution_start"
    return [int(key.removeprefix(prefix)) for key in read_golden(name) if key.startswith(prefix)]


def count_equal_attributions(name: str, starts: list[int], path: str) -> int:
    """The number of the authors' attributions from these layers on; all equal ours."""
    model, inputs = load_small_model(name)
    is_text = name.startswith("bert")
    compared = 0
    for start in starts:
        layout = CLASS_TOKEN if is_text else None
        result = explain_on(
            path,
            model,
            inputs,
            layout=layout,
            classes=list_targets(name),
            method="tiba",
            rules="reference",
            start_layer=start,
            normalize_rows=is_text,
        )
        for i in range(len(result.scores)):
            for column, tag in enumerate(TAGS):
                theirs = read_golden(name)[f"{i}/{tag}/transformer_attribution_start{start}"].copy()
                if is_text:
                    # The authors give the class token the row's minimum. They count padding, and
                    # so get 0 where there is any; whence lets padding change nothing.
                    mask = inputs["attention_mask"][i].bool().numpy()
                    theirs[0] = theirs[1:][mask[1:]].min()
                assert compute_error(result.scores[i, column], theirs) < 1e-5
                compared += 1
    return compared


def test_attribution_from_every_start(name):
    compared = count_equal_attributions(name, list_starts(name), "plain")
    assert compared == sum("transformer_attribution" in key for key in read_golden(name))


@pytest.mark.filterwarnings("error:.*cannot be (compiled|fused)")
@pytest.mark.parametrize(
    ("name", "path"),
    [
        *((name, "recorded") for name in NAMES),
        pytest.param("vit_a", "fused", marks=compiler),
        *(pytest.param(name, "fused", marks=(compiler, pytest.mark.slow)) for name in NAMES[1:]),
    ],
)
def test_compiled_attribution(name, path):
    first, *others = list_starts(name)
    compared = count_equal_attributions(name, [first], path)
    attributions = sum("transformer_attribution" in key for key in read_golden(name))
    assert compared == attributions // (1 + len(others))


def test_class_tokens_score_is_the_authors_where_nothing_is_padded():
    data = read_golden("bert_a")
    model, inputs = load_small_model("bert_a")
    unpadded = [i for i, mask in enumerate(data["attention_mask"]) if mask.all()]
    assert unpadded
    result = Explainer(model, layout=CLASS_TOKEN).explain(
        inputs,
        classes=list_targets("bert_a"),
        method="tiba",
        rules="reference",
        normalize_rows=True,
    )
    for i in unpadded:
        theirs = data[f"{i}/top/transformer_attribution_start0"]
        assert compute_error(result.scores[i, 0], theirs) < 1e-5


@pytest.mark.parametrize("start", [0, 1])
def test_real_vit_on_real_photos(data, start):
    pytest.importorskip("timm")
    authors = read_golden("real_vit")
    pixels = torch.stack([read_photo(data, file) for file in authors["files"]])
    ranks = ("rank0", "rank1")
    classes = torch.tensor(
        [[int(authors[f"{i}/{rank}/target"]) for rank in ranks] for i in range(len(pixels))]
    )
    result = Explainer(load_real_vit(data).double()).explain(
        pixels, classes=classes, method="tiba", rules="reference", start_layer=start
    )
    assert compute_error(result.logits, authors["logits"]) < 1e-6
    for i in range(len(pixels)):
        for column, rank in enumerate(ranks):
            theirs = authors[f"{i}/{rank}/transformer_attribution_start{start}"]
            assert compute_error(result.scores[i, column], theirs) < 1e-6


@pytest.mark.slow
@pytest.mark.filterwarnings("error:.*cannot be (compiled|fused)")
@pytest.mark.parametrize("path", ["recorded", pytest.param("fused", marks=compiler)])
def test_real_vit_compiled(data, path):
    authors = read_golden("real_vit")
    pixels = torch.stack([read_photo(data, file) for file in authors["files"]])
    classes = [int(authors[f"{i}/rank0/target"]) for i in range(len(pixels))]
    model = load_real_vit(data).double()
    result = explain_on(path, model, pixels, target=classes, method="tiba", rules="reference")
    for i in range(len(pixels)):
        theirs = authors[f"{i}/rank0/transformer_attribution_start0"]
        assert compute_error(result.scores[i], theirs) < 1e-6
