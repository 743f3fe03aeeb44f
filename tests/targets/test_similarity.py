"""Similarity of embeddings as a target."""

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from tests.saved import save_text_model
from tests.targets.models import build_encoder, make_batch, multiply_words, select_text
from tests.test_explainer_of import build_clip, make_clip_inputs
from whence import Explainer, WhenceError, targets

METHOD = {"method": "input_x_gradient"}


@pytest.fixture(scope="module")
def encoder():
    return build_encoder("Model")


def average(returned, mask=None):
    hidden = returned.last_hidden_state
    if mask is None:
        return hidden.mean(1)
    return (hidden * mask[..., None]).sum(1) / mask.sum(1)[:, None]


@pytest.mark.parametrize("other_rows", [1, 2])
def test_two_texts(encoder, other_rows):
    """The embedding of a text is the mean over its real tokens."""
    batch = make_batch()
    other = {name: value.flip(0)[:other_rows] for name, value in make_batch("left").items()}
    vectors = average(encoder(**other), other["attention_mask"].double()).detach()
    result = Explainer(encoder).explain(batch, targets.similarity(other), **METHOD)
    for sample in (0, 1):
        vector = vectors[sample % other_rows]
        text = select_text(batch, sample)

        def read(returned, vector=vector):
            return F.cosine_similarity(average(returned)[0], vector, dim=0)

        expected = multiply_words(encoder, text, read)
        real = batch["attention_mask"][sample].bool()
        assert torch.allclose(result.scores[sample][real], expected, rtol=1e-6, atol=1e-9)
        assert torch.allclose(result.values[sample], read(encoder(**text)))
    assert result.probabilities.isnan().all()
    assert result.classes(0)[0].probability is None


def test_a_vector_and_a_contrast(encoder):
    batch, vectors = make_batch(), torch.randn(2, 16, generator=torch.Generator().manual_seed(0))
    explainer = Explainer(encoder)
    a, b = (targets.similarity(vector) for vector in vectors)
    result = explainer.explain(batch, a, against=b, method="attnlrp")
    both = explainer.explain(batch, classes=[a, b], method="attnlrp")
    expected = both.scores[:, 0] - both.scores[:, 1]
    assert torch.allclose(result.scores, expected, rtol=1e-6, atol=1e-9)
    each = explainer.explain(batch, targets.similarity(vectors), method="attnlrp", memory=1e-6)
    assert torch.allclose(each.scores[1], both.scores[1, 1], rtol=1e-6, atol=1e-9)


def test_rules_take_the_norm_as_a_constant(encoder):
    """The gradient of a cosine has no part along the embedding, and so its relevance is none."""
    batch = {name: value[:1] for name, value in make_batch().items()}
    own = average(encoder(**batch)).detach()
    itself = Explainer(encoder).explain(batch, targets.similarity(own), **METHOD)
    assert itself.scores.abs().max() < 1e-12
    propagated = Explainer(encoder).explain(batch, targets.similarity(own), method="attnlrp")
    assert propagated.scores.abs().max() > 1e-3
    direction = F.normalize(own, dim=1) / own.norm()
    linear = Explainer(encoder).explain(
        batch, lambda outputs, _: average(outputs) @ direction[0], method="attnlrp"
    )
    assert torch.allclose(propagated.scores, linear.scores, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("of", "name"), [("pixel_values", "image"), ("input_ids", "text")])
def test_the_embeddings_of_each_tower(of, name):
    model, inputs = build_clip("CLIP"), make_clip_inputs(2, 2)
    embeddings = getattr(model(**inputs), f"{name}_embeds").detach()
    result = Explainer(model).explain(inputs, targets.similarity(embeddings[:1]), of=of, **METHOD)
    expected = F.cosine_similarity(embeddings, embeddings[:1])
    assert torch.allclose(result.values, expected)


def test_the_embedding_that_the_user_states(encoder):
    batch = make_batch()
    explainer = Explainer(encoder, output=lambda returned: returned.pooler_output)
    vector = torch.ones(16).double()
    result = explainer.explain(batch, targets.similarity(vector), **METHOD)
    expected = F.cosine_similarity(encoder(**batch).pooler_output, vector[None])
    assert torch.allclose(result.values, expected)


def test_what_is_no_embedding(encoder):
    with pytest.raises(WhenceError, match=r"similarity\(text\) needs the tokenizer"):
        Explainer(encoder).explain(make_batch(), targets.similarity("text"), **METHOD)
    with pytest.raises(WhenceError, match=r"shape \(2, 16\), and that of the other \(1, 5\)"):
        Explainer(encoder).explain(make_batch(), targets.similarity(torch.ones(5)), **METHOD)
    model = build_encoder("ForSequenceClassification")
    with pytest.raises(WhenceError, match="finds no embedding"):
        Explainer(model).explain(make_batch(), targets.similarity(torch.ones(5)), **METHOD)


def test_texts_where_the_tokenizer_is_known(tmp_path):
    folder = save_text_model(tmp_path, task="")
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(["a good film", "it is bad !"], padding=True, return_tensors="pt")
    others = ["very good", "awful"]
    explainer = Explainer(model, tokenizer=tokenizer)
    each = explainer.explain(batch, targets.similarity(others), **METHOD)
    assert each.target_names == ["similarity to “very good”", "similarity to “awful”"]
    for sample, text in enumerate(others):
        encoded = tokenizer([text], return_tensors="pt")
        expected = explainer.explain(batch, targets.similarity(encoded), **METHOD)
        found = explainer.explain(batch, targets.similarity(text), **METHOD)
        assert torch.allclose(found.scores, expected.scores, atol=1e-6)
        assert torch.allclose(each.scores[sample], expected.scores[sample], atol=1e-6)
    with pytest.raises(WhenceError, match="needs the tokenizer"):
        Explainer(model).explain(batch, targets.similarity("awful"))
    with pytest.raises(WhenceError, match="a text or a vector, not list"):
        explainer.explain(batch, targets.similarity([3]))
