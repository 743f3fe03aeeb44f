from types import SimpleNamespace

import pytest
import torch

from tests.paths import PATHS, explain_on
from tests.real import load_real_vit, read_photo
from tests.test_golden import (
    CLASS_TOKEN,
    TAGS,
    compute_error,
    list_targets,
    load_small_model,
    read_golden,
)
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, make_texts
from whence import Explainer, WhenceError
from whence.methods.rollout import _discard_lowest


def compute_by_formula(maps, start=0, normalize_rows=True) -> torch.Tensor:
    """The matrix C of each sample, multiplied entry by entry's row and column."""
    found = []
    for sample in zip(*maps[start:], strict=True):
        joint = torch.eye(sample[0].shape[-1], dtype=torch.float64)
        for layer in sample:
            layer = layer + torch.eye(len(layer), dtype=torch.float64)
            if normalize_rows:
                layer = torch.stack([row / row.sum() for row in layer])
            joint = layer @ joint
        found.append(joint)
    return torch.stack(found)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["vit_a", "vit_b", "bert_a", "bert_b"])
def test_the_authors_results(name, path):
    model, inputs = load_small_model(name)
    result = explain_on(path, model, inputs, classes=list_targets(name), method="rollout")
    first = 1 if name.startswith("bert") else 0  # the authors set the class token to 0
    for i, scores in enumerate(result.scores):
        for column, tag in enumerate(TAGS):
            theirs = read_golden(name)[f"{i}/{tag}/attention_rollout"]
            assert compute_error(scores[column, first:], theirs[first:]) < 1e-12


def test_the_authors_results_on_real_photos(data):
    authors = read_golden("real_vit")
    pixels = torch.stack([read_photo(data, file) for file in authors["files"]])
    result = Explainer(load_real_vit(data).double()).explain(
        pixels, method="rollout", start_layer=1
    )
    for i, scores in enumerate(result.scores):
        assert compute_error(scores, authors[f"{i}/rank0/attention_rollout_start1"]) < 1e-6


@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("normalize_rows", [True, False])
@pytest.mark.parametrize("heads", ["mean", "max", "min"])
def test_image_with_class_token(start, normalize_rows, heads):
    result = Explainer(HandWrittenViT().double()).explain(
        make_images(32, 32).double(),
        method="rollout",
        start_layer=start,
        normalize_rows=normalize_rows,
        heads=heads,
        keep_evidence=True,
    )
    fuse = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}[heads]
    maps = [fuse(layer, 1) for layer in result.evidence.attention]
    joint = compute_by_formula(maps, start, normalize_rows)
    assert torch.allclose(result.scores, joint[:, 0, 1:], rtol=1e-10)


def test_average_pooling_reads_whole_rows():
    case = CASES["timm-vit-average-fused"]
    result = Explainer(build_model(case).double()).explain(
        case.inputs().double(), method="rollout", keep_evidence=True
    )
    joint = compute_by_formula([layer.mean(1) for layer in result.evidence.attention])
    assert torch.allclose(result.scores, joint.mean(1), rtol=1e-10)
    assert torch.allclose(result.scores.sum(-1), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("discard_ratio", [0.0, 0.7])
def test_padded_text(discard_ratio):
    """Scores are those of each text alone; the class token gets the lowest of the others."""
    explainer = Explainer(build_model(CASES["Bert-sdpa"]).double(), layout=CLASS_TOKEN)
    inputs = make_texts()
    options = {"method": "rollout", "discard_ratio": discard_ratio}
    result = explainer.explain(inputs, classes=[0, 1], **options)
    for i, length in enumerate(inputs["attention_mask"].sum(1).tolist()):
        alone = {key: value[i : i + 1, :length] for key, value in inputs.items()}
        expected = explainer.explain(alone, keep_evidence=True, **options)
        assert torch.allclose(result.scores[i, :, :length], expected.scores, rtol=1e-10)
        assert not result.scores[i, :, length:].any()
        assert expected.scores[0, 0] == expected.scores[0, 1:].min()
        if not discard_ratio:
            maps = [layer.mean(1) for layer in expected.evidence.attention]
            joint = compute_by_formula(maps)
            assert torch.allclose(expected.scores[0, 1:], joint[0, 0, 1:], rtol=1e-10)


def discard_lowest(fused: torch.Tensor, ratio: float) -> torch.Tensor:
    """The lowest entries set to 0 one after the other, but for that of the class token."""
    fused = fused.clone()
    entries = sorted((float(v), i) for i, v in enumerate(fused.flatten()))
    for _, i in entries[: int(len(entries) * ratio)]:
        if i != 0:
            fused.view(-1)[i] = 0
    return fused


@pytest.mark.parametrize("ratio", [0.3, 0.9, 0.999])
def test_discarding_the_lowest(ratio):
    result = Explainer(HandWrittenViT().double()).explain(
        make_images(32, 32).double(),
        method="rollout",
        heads="max",
        discard_ratio=ratio,
        keep_evidence=True,
    )
    maps = [
        torch.stack([discard_lowest(sample, ratio) for sample in layer.amax(1)])
        for layer in result.evidence.attention
    ]
    joint = compute_by_formula(maps)
    assert torch.allclose(result.scores, joint[:, 0, 1:], rtol=1e-10)


@pytest.mark.parametrize("ratio", [0.5, 0.99])
def test_the_class_tokens_own_attention_is_not_discarded(ratio):
    maps = torch.tensor([[[0.1, 0.9], [0.6, 0.4]]])
    evidence = SimpleNamespace(
        pooling=torch.tensor([[[1.0, 0.0]]]), token_mask=torch.ones(1, 2).bool(), tokens=2
    )
    found = _discard_lowest(maps, ratio, evidence, pools=False)
    assert torch.equal(found[0, 0], maps[0, 0])
    assert found[0, 1].tolist()[1] == 0


@pytest.mark.parametrize("ratio", [-0.1, 1.0, 2])
def test_a_ratio_outside_of_its_range(ratio):
    with pytest.raises(WhenceError, match="give a number from 0 to below 1"):
        Explainer(HandWrittenViT()).explain(
            make_images(32, 32), method="rollout", discard_ratio=ratio
        )


def test_a_start_layer_that_does_not_exist():
    with pytest.raises(WhenceError, match="start_layer=3 does not exist"):
        Explainer(HandWrittenViT()).explain(make_images(32, 32), method="rollout", start_layer=3)


def test_uniform_attention_gives_equal_scores():
    model = HandWrittenViT()
    with torch.no_grad():
        for block in model.blocks:
            block.qkv[:2].zero_()
    scores = Explainer(model).explain(torch.zeros(1, 3, 32, 32), method="rollout").scores
    assert torch.allclose(scores, scores[0, 0].expand(1, 16))
    assert scores[0, 0] > 0
