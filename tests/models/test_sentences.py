"""Encoders of sentences, in the folders of transformers and of sentence-transformers."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from tests.saved import save_text_model
from whence import Explainer, WhenceError, explain, models, targets

TEXTS = ["a very good film", "it is awful"]
INPUTS = ["the film was wonderful , it is good", "not bad !"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A BERT without a head."""
    return save_text_model(tmp_path_factory.mktemp("encoder"), task="")


@pytest.fixture(scope="module")
def plain(folder):
    """The encoder and its tokenizer by transformers alone."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


def write_modules(folder: Path, pooling: dict, *more: str) -> None:
    """Write the parts of an encoder beside its model, as sentence-transformers does."""
    parts = [("", "Transformer"), ("1_Pooling", "Pooling"), *[(f"2_{n}", n) for n in more]]
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    listed = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(parts)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))


def embed(plain, text: str, pooling: str) -> torch.Tensor:
    """One text, without padding."""
    model, tokenizer = plain
    with torch.no_grad():
        (hidden,) = model(**tokenizer([text], return_tensors="pt")).last_hidden_state
    pooled = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}
    return pooled[pooling] if pooling in pooled else hidden.max(0).values


@pytest.mark.parametrize(
    ("mode", "pooling"),
    [
        ("pooling_mode_mean_tokens", "mean"),
        ("pooling_mode_cls_token", "cls"),
        pytest.param("pooling_mode_max_tokens", "max", marks=pytest.mark.slow),
        pytest.param("pooling_mode_lasttoken", "last", marks=pytest.mark.slow),
    ],
)
def test_poolings(folder, plain, tmp_path, mode, pooling):
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    modes = {"pooling_mode_cls_token": False, "word_embedding_dimension": 32, mode: True}
    write_modules(tmp_path, {**modes, "include_prompt": True}, "Normalize")
    result = explain(INPUTS, tmp_path, texts=TEXTS, method="input_x_gradient")
    for n, text in enumerate(INPUTS):
        for m, other in enumerate(TEXTS):
            one, two = embed(plain, text, pooling), embed(plain, other, pooling)
            expected = F.cosine_similarity(one, two, 0)
            assert float(result.fits[n, m]) == pytest.approx(float(expected), abs=1e-5)
    assert result.values.tolist() == pytest.approx(result.fits.max(1).values.tolist(), abs=1e-5)


SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in ("tiba", "gae", "input_x_gradient")]


@pytest.mark.parametrize("method", ["whence", *SLOW])
def test_both_sides_are_those_of_similarity(folder, plain, method):
    """Each pair alone, by `targets.similarity` on the encoder itself."""
    model, tokenizer = plain
    result = explain(INPUTS, folder, texts=TEXTS, classes=TEXTS, method=method)
    explainer = Explainer(model, tokenizer=tokenizer)
    for n, text in enumerate(INPUTS):
        for m, other in enumerate(TEXTS):
            one, two = (tokenizer([x], return_tensors="pt") for x in (text, other))
            own = explainer.explain(one, targets.similarity(two), method=method)
            length = own.scores.shape[1]
            assert torch.allclose(result.scores[n, m, :length], own.scores[0], rtol=1e-3, atol=1e-6)
            assert not result.scores[n, m, length:].any()
            compared = explainer.explain(two, targets.similarity(one), method=method).words()
            found = result.compared_words(n, m)
            assert [word for word, _ in found] == [word for word, _ in compared]
            scores, expected = ([score for _, score in words] for words in (found, compared))
            assert scores == pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.slow
def test_the_most_similar_text_unless_another_is_named(folder):
    result = explain(INPUTS, folder, texts=TEXTS, method="gae")
    assert result.target.tolist() == result.fits.argmax(1).tolist()
    named = explain(INPUTS, folder, texts=TEXTS, target=[1, 0], method="gae")
    assert named.target_names == [TEXTS[1], TEXTS[0]]
    (one,) = named.classes(0)
    assert (one.probability, one.percent) == (None, f"cosine {named.fits[0, 1]:.2f}")
    difference = float(named.fits[0, 1] - named.fits[0, 0])
    contrast = explain(INPUTS[0], folder, texts=TEXTS, target=1, against=0, method="gae")
    assert float(contrast.values) == pytest.approx(difference, abs=1e-6)
    with pytest.raises(WhenceError, match="both are class 1"):
        explain(INPUTS[0], folder, texts=TEXTS, target=1, against=1)


@pytest.mark.slow
def test_a_model_object_stays_as_it_was(plain):
    model, tokenizer = plain
    model.train()
    try:
        explain(INPUTS[1], model, processor=tokenizer, texts=TEXTS, method="input_x_gradient")
        assert all(module.training for module in model.modules())
    finally:
        model.eval()
    result = explain(INPUTS[1], model, processor=tokenizer, texts=TEXTS, method="gae")
    assert result.measure == "cosine"


def test_a_dense_layer_and_the_longest_text(folder, plain, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    write_modules(tmp_path, {"pooling_mode": "mean"}, "Dense")
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 5}')
    (tmp_path / "2_Dense").mkdir()
    config = {"in_features": 32, "out_features": 8, "bias": True}
    config["activation_function"] = "torch.nn.modules.activation.Tanh"
    (tmp_path / "2_Dense" / "config.json").write_text(json.dumps(config))
    weights = {"linear.weight": torch.randn(8, 32), "linear.bias": torch.randn(8)}
    save_file(weights, tmp_path / "2_Dense" / "model.safetensors")
    with pytest.warns(UserWarning, match="cut at 5 of 10 tokens"):
        result = explain(INPUTS[0], tmp_path, texts=["it is"], method="gae")
    assert result.notes == []
    vectors = []
    for text in ("the film was", "it is"):  # three words and two special tokens
        hidden = embed(plain, text, "mean")
        vectors.append((weights["linear.weight"] @ hidden + weights["linear.bias"]).tanh())
    assert float(result.values) == pytest.approx(float(F.cosine_similarity(*vectors, 0)), abs=1e-5)


def test_what_is_refused(folder, tmp_path):
    with pytest.raises(WhenceError, match="compares texts with texts, and none are named"):
        explain(INPUTS[0], folder)
    with pytest.raises(WhenceError, match="by name or index"):
        explain(INPUTS[0], folder, texts=TEXTS, target=lambda outputs, _: outputs[:, 0])
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    write_modules(tmp_path, {"pooling_mode_weightedmean_tokens": True})
    with pytest.raises(WhenceError, match="pools tokens by pooling_mode_weightedmean_tokens"):
        models.load(tmp_path)
    write_modules(tmp_path, {"pooling_mode": "mean"}, "WordWeights")
    with pytest.raises(WhenceError, match="a part that whence does not know: WordWeights"):
        models.load(tmp_path)
    (tmp_path / "modules.json").write_text("[3]")
    with pytest.raises(WhenceError, match="not as sentence-transformers writes it"):
        models.load(tmp_path)
