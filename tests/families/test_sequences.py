"""Several sequences: decoders that get a copy of the input, two sequences that attend in turn."""

import pytest
import torch

from tests.families.models import (
    build_transformers,
    copy_eager,
    make_ids,
    make_pixels,
    replace_embeddings,
)
from tests.methods.gae_formula import weigh_maps
from tests.methods.test_gae_cross_attention import normalize, propagate_decoder
from whence import Explainer

BART = {
    "vocab_size": 40,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 32,
    "num_labels": 3,
}
T5 = {
    "vocab_size": 40,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "num_labels": 3,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "decoder_start_token_id": 1,
}
SIZES = {"Bart": BART, "T5": T5}


@pytest.mark.parametrize("family", SIZES)
def test_both_copies_of_the_input_count(family):
    """The decoder of a classifier gets the same ids, one place to the right."""
    name = f"{family}ForSequenceClassification"
    model = build_transformers(name, f"{family}Config", **SIZES[family])
    ids = torch.tensor([[0, 5, 6, 7, 8, 2], [0, 9, 10, 2, 1, 1]])
    mask = (ids != 1).long()
    result = Explainer(model).explain(
        {"input_ids": ids, "attention_mask": mask}, [0, 2], method="input_x_gradient"
    )
    for sample, (length, target) in enumerate(((6, 0), (4, 2))):
        own = copy_eager(model)
        words = ids[sample : sample + 1, :length]
        with replace_embeddings(own) as leaves:
            logit = own(input_ids=words, attention_mask=torch.ones_like(words)).logits[0, target]
        assert len(leaves) == 2
        of_encoder, of_decoder = (
            (x * g)[0].sum(-1).detach()
            for x, g in zip(leaves, torch.autograd.grad(logit, leaves), strict=True)
        )
        expected = of_encoder + torch.cat([of_decoder[1:], torch.zeros(1)])
        found = result.scores[sample]
        assert torch.allclose(found[:length], expected, rtol=1e-5, atol=1e-7 * expected.max())
        assert not found[length:].any()


@pytest.mark.parametrize("family", SIZES)
def test_attention_across_sequences(family):
    """`gae` as in its paper; others follow both copies of the input."""
    name = f"{family}ForSequenceClassification"
    model = build_transformers(name, f"{family}Config", **SIZES[family])
    eager, ids = copy_eager(model), torch.tensor([[0, 5, 6, 7, 8, 2]])
    output = eager(input_ids=ids, output_attentions=True)
    groups = output.encoder_attentions, output.decoder_attentions, output.cross_attentions
    maps = weigh_maps(output.logits[0, 1], [one for group in groups for one in group])
    expected = propagate_decoder(maps[:2], maps[2:4], maps[4:])[-1]
    explainer, inputs = Explainer(model), {"input_ids": ids}
    found = explainer.explain(inputs, 1, method="gae").scores[0]
    assert torch.allclose(found, expected, rtol=1e-5)
    rollout = explainer.explain(inputs, 1, method="rollout").scores[0]
    assert torch.allclose(rollout, _roll_out_copies(output), rtol=1e-5)


def _roll_out_copies(output):
    """The row of the token that is read, over both stacks, of the ids of both."""
    means = [
        [one[0].mean(0).detach() for one in group]
        for group in (output.encoder_attentions, output.decoder_attentions, output.cross_attentions)
    ]
    of_decoder = torch.zeros(means[1][0].shape[0], dtype=means[1][0].dtype)
    of_decoder[-1] = 1
    of_encoder = torch.zeros_like(of_decoder)
    for own, across in zip(means[1][::-1], means[2][::-1], strict=True):
        of_encoder = of_encoder + of_decoder / 2 @ across
        of_decoder = of_decoder / 2
        of_decoder = (of_decoder + of_decoder @ own) / 2
    for own in means[0][::-1]:
        of_encoder = (of_encoder + of_encoder @ own) / 2
    return of_encoder + torch.cat([of_decoder[1:], torch.zeros(1, dtype=of_decoder.dtype)])


def _build_lxmert():
    return build_transformers(
        "LxmertForQuestionAnswering",
        "LxmertConfig",
        vocab_size=40,
        hidden_size=16,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
        l_layers=2,
        r_layers=1,
        x_layers=3,
        visual_feat_dim=6,
        num_qa_labels=4,
    )


def _run_lxmert(model, inputs, target):
    """The logit of one sample and all attention maps, in the order in which they are computed."""
    maps = []
    hooks = [
        module.dropout.register_forward_hook(lambda _m, args, _o: maps.append(args[0]))
        for module in model.modules()
        if type(module).__name__ == "LxmertAttention"
    ]
    logit = model(**inputs).question_answering_score[0, target]
    for hook in hooks:
        hook.remove()
    return logit, maps


def _propagate_lxmert(maps):
    """The relevancy of words and boxes for words, as in the authors' code."""
    words, boxes = len(maps[0]), len(maps[2])
    ll, vv = torch.eye(words).double(), torch.eye(boxes).double()
    lv, vl = torch.zeros(words, boxes).double(), torch.zeros(boxes, words).double()
    for one in maps[:2]:
        ll = ll + one @ ll
    vv = vv + maps[2] @ vv
    for of_words, of_boxes, own_words, own_boxes in (maps[3:7], maps[7:11], maps[11:]):
        # Both attentions read what entered the layer.
        more_lv = normalize(ll).T @ of_words @ normalize(vv)
        more_ll = of_words @ vl
        more_vl = normalize(vv).T @ of_boxes @ normalize(ll)
        more_vv = of_boxes @ lv
        ll, lv, vl, vv = ll + more_ll, lv + more_lv, vl + more_vl, vv + more_vv
        lv, ll = lv + own_words @ lv, ll + own_words @ ll
        vl, vv = vl + own_boxes @ vl, vv + own_boxes @ vv
    return ll, lv


def _make_lxmert_inputs():
    return {
        "input_ids": make_ids(1, 5),
        "visual_feats": make_pixels(1, 3, 6),
        "visual_pos": make_pixels(1, 3, 4),
    }


@pytest.mark.parametrize("of", ["input_ids", "visual_feats"])
def test_lxmert(of):
    """Words and boxes attend to each other; the last layer's boxes lead nowhere."""
    model, inputs = _build_lxmert(), _make_lxmert_inputs()
    logit, maps = _run_lxmert(model, inputs, 1)
    assert len(maps) == 15
    zeros = {12: torch.zeros(3, 5).double(), 14: torch.zeros(3, 3).double()}
    used = [one for n, one in enumerate(maps) if n not in zeros]
    weighed = iter(weigh_maps(logit, used))
    ll, lv = _propagate_lxmert([zeros[n] if n in zeros else next(weighed) for n in range(15)])
    explainer = Explainer(model, output=lambda returned: returned.question_answering_score)
    found = explainer.explain(inputs, 1, method="gae", of=of).scores[0]
    if of == "visual_feats":
        assert torch.allclose(found, lv[0], rtol=1e-5)
    else:
        assert torch.allclose(found[1:], ll[0, 1:], rtol=1e-5)
    for method in ("tiba", "whence"):
        assert explainer.explain(inputs, 1, method=method, of=of).scores[0].any()
    both = explainer.explain(inputs, 1, method="rollout", of=["input_ids", "visual_feats"])
    total = both[of].scores.sum()  # each input is explained while the other is a constant
    assert torch.isclose(total, torch.ones_like(total))


def test_lxmert_at_the_input():
    model, inputs = _build_lxmert(), _make_lxmert_inputs()
    words = model.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_()
    boxes = inputs["visual_feats"].clone().requires_grad_()
    rest = {"visual_pos": inputs["visual_pos"], "visual_feats": boxes}
    logit = model(inputs_embeds=words, **rest).question_answering_score[0, 1]
    explainer = Explainer(model, output=lambda returned: returned.question_answering_score)
    gradients = torch.autograd.grad(logit, [words, boxes])
    pairs = zip(("input_ids", "visual_feats"), (words, boxes), gradients, strict=True)
    for of, x, gradient in pairs:
        found = explainer.explain(inputs, 1, method="input_x_gradient", of=of).scores[0]
        assert torch.allclose(found, (x * gradient)[0].sum(-1), rtol=1e-5)
