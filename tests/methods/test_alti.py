import pytest
import torch
from torch import Tensor
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from tests.methods.plain_models import to_double
from tests.methods.test_attention_norm import build_tiny, compute_vectors, multiply_layers
from tests.test_golden import CLASS_TOKEN
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, make_texts
from whence import Explainer, WhenceError
from whence.methods import alti


def compute_contributions(vectors: Tensor, output: Tensor) -> Tensor:
    """C of a layer, number by number, of vectors (batch, i, j, width) and the output's rows."""
    found = torch.zeros(vectors.shape[:3], dtype=vectors.dtype)
    for b, of_sample in enumerate(vectors):
        for i, row in enumerate(of_sample):
            for j, vector in enumerate(row):
                whole = sum(abs(float(y)) for y in output[b, i])
                distance = sum(
                    abs(float(y) - float(t)) for y, t in zip(output[b, i], vector, strict=True)
                )
                found[b, i, j] = max(0.0, whole - distance)
    return found


@pytest.fixture(scope="module", params=["Bert", "ViTForImageClassification"])
def example(request):
    """A model that normalises after the attention, and one that does before."""
    model, after = build_tiny(request.param), request.param == "Bert"
    inputs = to_double(CASES[f"{request.param}-eager"].inputs())
    include = "layer_norm" if after else "residual"
    vectors, _, outputs = compute_vectors(model, inputs, include, after)
    pairs = zip(vectors, outputs, strict=True)
    return model, inputs, after, [compute_contributions(v, y.detach()) for v, y in pairs]


@pytest.mark.parametrize("layer", [0, -1, None])
def test_vectors_and_distances_in_a_loop(example, layer):
    model, inputs, after, matrices = example
    chosen = matrices if layer is None else [matrices[layer]]
    expected = multiply_layers(chosen, identity=False)[:, 0, 0 if after else 1 :]
    explainer = Explainer(model, layout=CLASS_TOKEN if after else None)
    ours = explainer.explain(inputs, method="alti", layer=layer)
    assert torch.allclose(ours.scores, expected, rtol=1e-8, atol=1e-13)


def test_chunks_of_queries(monkeypatch):
    model = build_model(CASES["Bert-sdpa"]).double()
    whole = Explainer(model).explain(make_texts(), method="alti").scores
    monkeypatch.setattr(alti, "_NUMBERS_AT_ONCE", 3 * 3 * 10 * 32)
    in_chunks = Explainer(model).explain(make_texts(), method="alti").scores
    assert torch.allclose(whole, in_chunks, rtol=1e-10)


def test_padding_gets_nothing():
    model, texts = build_model(CASES["Bert-sdpa"]).double(), make_texts()
    explainer = Explainer(model)
    whole = explainer.explain(texts, method="alti").scores
    length = int(texts["attention_mask"][1].sum())
    alone = {name: value[1:2, :length] for name, value in texts.items()}
    single = explainer.explain(alone, method="alti").scores
    assert torch.allclose(whole[1:2, :length], single, rtol=1e-9)
    assert not whole[1, length:].any()


@pytest.mark.parametrize("method", ["alti", "decompx"])
def test_types_of_16_bits(method):
    """Also of products alone, which then sum to something else than the model computed."""
    case = CASES["Bert-sdpa"]
    expected = Explainer(build_model(case)).explain(case.inputs(), target=1, method=method).scores
    half = Explainer(build_model(case).half())
    coarse = Explainer(build_model(case), precision="bfloat16")
    for explainer in (half, coarse):
        scores = explainer.explain(case.inputs(), target=1, method=method).scores.float()
        assert (scores - expected).abs().max() < 0.02 * expected.abs().max()


def test_a_feed_forward_part_beside_the_attention_is_refused():
    config = GPTNeoXConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        use_parallel_residual=True,
    )
    model = GPTNeoXForCausalLM(config).eval()
    with pytest.raises(WhenceError, match="More is added around the attention"):
        Explainer(model).explain(torch.tensor([[3, 7, 11]]), method="alti")


def test_a_layer_that_does_not_exist():
    with pytest.raises(WhenceError, match="layer=7 does not exist"):
        Explainer(HandWrittenViT()).explain(make_images(32, 32), method="alti", layer=7)
