"""GAE on LXMERT, two sequences that attend to each other, against the authors' own results."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.multimodal import (
    LRP_VARIANTS,
    TAGS,
    VARIANTS,
    compute_error,
    load_model,
    mark_variants,
    read_multimodal,
    read_sample,
    read_sizes,
)
from whence import Explainer, Layout, WhenceError

OF = ("input_ids", "visual_feats")
SAMPLES = (0, 1)
NAMES = [f"{i}/{tag}" for i in SAMPLES for tag in TAGS]


def explain_sample(i: int, of: str | list[str], **options: Any) -> Any:
    """Our explanations of one sample, for the authors' two targets."""
    data = read_multimodal("lxmert_a")
    classes = [int(data[f"{i}/{tag}/target"]) for tag in TAGS]
    explainer = Explainer(load_model("lxmert_a"))
    return explainer.explain(
        read_sample("lxmert_a", i), classes=classes, of=of, **{"method": "gae", **options}
    )


def compare(scores: Tensor, name: str, entry: str, of: str) -> float:
    """How far scores are from the first row of a matrix of the authors'.

    They set the first entry of the text to 0, which is what it keeps of itself.
    """
    matrix = read_multimodal("lxmert_a")[f"{name}/{entry}/R_t_{'t' if of == OF[0] else 'i'}"]
    first = int(of == OF[0])
    return compute_error(scores[first:], matrix[0][first:])


@pytest.mark.parametrize("variant", mark_variants(VARIANTS))
@pytest.mark.parametrize("of", OF)
def test_variants(variant, of):
    for i in SAMPLES:
        result = explain_sample(i, of, **VARIANTS[variant])
        for column, tag in enumerate(TAGS):
            assert compare(result.scores[0, column], f"{i}/{tag}", variant, of) < 1e-8


@pytest.mark.parametrize("variant", mark_variants(LRP_VARIANTS))
def test_variants_with_relevance(variant):
    for i in SAMPLES:
        options = {"rules": "reference", **LRP_VARIANTS[variant]}
        both = explain_sample(i, list(OF), **options)
        for of in OF:
            alone = explain_sample(i, of, **options)
            for column, tag in enumerate(TAGS):
                for scores in (both[of].scores[0, column], alone.scores[0, column]):
                    assert compare(scores, f"{i}/{tag}", variant, of) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("of", OF)
def test_without_aggregation(of):
    for i in SAMPLES:
        result = explain_sample(i, of, aggregate=False)
        for column, tag in enumerate(TAGS):
            name, scores = f"{i}/{tag}", result.scores[0, column]
            assert compare(scores, name, "ablation_no_aggregation", of) < 1e-8


def test_both_inputs_in_one_call():
    both = explain_sample(0, list(OF))
    for of in OF:
        assert torch.allclose(both[of].scores, explain_sample(0, of).scores, rtol=1e-12)


@pytest.mark.parametrize("of", [OF[1], list(OF), pytest.param(OF[0], marks=pytest.mark.slow)])
def test_attention_and_gradients(of):
    """Of both sequences, whichever is explained; not what the target does not depend on."""
    data, sizes = read_multimodal("lxmert_a"), read_sizes("lxmert_a")
    layers = [f"lang{b}" for b in range(sizes["l_layers"])]
    layers += [f"visn{b}" for b in range(sizes["r_layers"])]
    parts = ("lang", "visn", "lang_self", "visn_self")
    layers += [f"cross{b}_{part}" for b in range(sizes["x_layers"]) for part in parts]
    layers = [layer for layer in layers if f"0/top/{layer}/gradient" in data]
    assert len(layers) == 11
    result = explain_sample(0, of, keep_evidence=True)
    for one in [result] if isinstance(of, str) else [result[name] for name in of]:
        kept = one.evidence
        assert len(kept.attention) == len(kept.gradient) == len(layers)
        for number, layer in enumerate(layers):
            attention, gradient = kept.attention[number][0], kept.gradient[number][0]
            assert compute_error(attention, data[f"0/top/{layer}/attention"]) < 1e-9
            for column, tag in enumerate(TAGS):
                expected = data[f"0/{tag}/{layer}/gradient"]
                assert compute_error(gradient[column], expected) < 1e-9


def make_padded_batch() -> dict[str, Tensor]:
    """Both samples as a batch, whose texts and boxes are padded."""
    alone = [read_sample("lxmert_a", i) for i in SAMPLES]
    for one in alone:
        one["visual_attention_mask"] = torch.ones(one["visual_feats"].shape[:2])
    batch = {}
    for name in alone[0]:
        longest = max(one[name].shape[1] for one in alone)
        fill = 3 if name == "input_ids" else 0.5 if name in ("visual_feats", "visual_pos") else 0
        batch[name] = torch.stack(
            [
                torch.cat(
                    [one[name][0], one[name].new_full((longest - len(row), *row.shape[1:]), fill)]
                )
                for one in alone
                for row in one[name]
            ]
        )
    return batch


@pytest.mark.parametrize("zero_rows", mark_variants(["drop", "identity", "refuse"]))
def test_padding_and_batches_change_nothing(zero_rows):
    """The authors' code gives NaN for padded texts, as padding has rows of zeros."""
    data, batch = read_multimodal("lxmert_a"), make_padded_batch()
    top = [int(data[f"{i}/top/target"]) for i in SAMPLES]
    explainer = Explainer(load_model("lxmert_a"))
    for of in OF:
        result = explainer.explain(batch, target=top, of=of, method="gae", zero_rows=zero_rows)
        for i in SAMPLES:
            length = read_sample("lxmert_a", i)[of].shape[1]
            assert compare(result.scores[i, :length], f"{i}/top", "ours", of) < 1e-8
            assert not result.scores[i, length:].any()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["raw_attention", "attention_gradcam"])
def test_baselines_at_the_last_layers(method):
    """The last self-attention of the text, and the last attention from it to the image."""
    for i in SAMPLES:
        for of, layer in zip(OF, (-1, -2), strict=True):
            scores = explain_sample(i, of, method=method, layer=layer).scores[0]
            for column, tag in enumerate(TAGS):
                assert compare(scores[column], f"{i}/{tag}", method, of) < 1e-8


def test_a_start_beyond_the_attention_to_the_image():
    with pytest.raises(WhenceError, match="start_layer=-1 leaves out all attention that leads"):
        explain_sample(0, "visual_feats", start_layer=-1)


def test_a_token_that_is_known_to_be_no_word_gets_the_lowest_score():
    """The authors set it to 0."""
    data, inputs = read_multimodal("lxmert_a"), read_sample("lxmert_a", 0)
    explainer = Explainer(load_model("lxmert_a"), layout=Layout(special=(0,)))
    target = int(data["0/top/target"])
    scores = explainer.explain(inputs, target=target, of="input_ids", method="gae").scores[0]
    assert compare(scores, "0/top", "ours", "input_ids") < 1e-8
    assert scores[0] == scores[1:].min()
