"""The attention of one token in all heads."""

import torch
from transformers import BertForSequenceClassification

from tests.saved import make_photo
from whence.web.attention_heads import compute_head_attention, pick_distinct_colors


def test_attention_of_a_text_is_the_models_own(service, text_model):

    loaded = service.models["texts"]
    prepared = loaded.prepare(["the film is not bad"])
    attention = compute_head_attention(loaded, prepared, 4)
    model = BertForSequenceClassification.from_pretrained(
        text_model, attn_implementation="eager", dtype=torch.float32
    )
    maps = model(**prepared.inputs, output_attentions=True).attentions
    assert attention.names == ["[CLS]", "the", "film", "is", "not", "bad", "[SEP]"]
    for weights, expected in zip(attention.weights, maps, strict=True):
        assert torch.allclose(torch.tensor(weights), expected[0, :, 4].double(), atol=1e-6)


def test_attention_of_patches_leaves_out_the_class_token(service):
    loaded = service.models["photos"]
    attention = compute_head_attention(loaded, loaded.prepare([make_photo()]), 0)
    assert attention.names[:3] == ["class token", "row 1, column 1", "row 1, column 2"]
    assert [weights.shape for weights in attention.weights] == [(4, 16), (4, 16)]


def test_pick_distinct_colors_differ():
    assert len(set(pick_distinct_colors(16))) == 16
