"""Encoders: answers read at a token of the text, relative positions, audio with padding."""

from functools import partial

import pytest
import torch

from tests.families.formulas import Plain, center
from tests.families.models import (
    HEADS,
    TEXT,
    WIDTH,
    WORDS,
    build_transformers,
    check_scores,
    copy_eager,
    make_ids,
    make_pixels,
)
from whence import Explainer


@pytest.mark.parametrize("task", ["MaskedLM", "TokenClassification"])
@pytest.mark.parametrize("family", ["Bert", "Roberta", "Deberta", "ModernBert"])
def test_a_token_of_the_text_is_read(family, task):
    """Texts of different lengths, read at their third token."""
    sizes = {"num_labels": 9, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if family == "Deberta":
        sizes |= {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    model = build_transformers(f"{family}For{task}", f"{family}Config", **TEXT, **sizes)
    eager, ids, at = copy_eager(model), make_ids(), 2
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0

    def run(sample: int, target: int) -> Plain:
        length = int(mask[sample].sum())
        words = ids[sample : sample + 1, :length]
        embeddings = eager.get_input_embeddings()(words).detach().requires_grad_()
        output = eager(
            inputs_embeds=embeddings,
            attention_mask=torch.ones_like(words),
            output_attentions=True,
            output_hidden_states=True,
        )
        maps = list(output.attentions)
        return Plain(
            logit=output.logits[0, at, target],
            centered=center(output.logits)[0, at, target],
            maps=maps,
            hidden=list(output.hidden_states[: len(maps)]),
            inputs=embeddings,
            read={at: 1.0},
            units=list(range(length)),
        )

    explainer = Explainer(model, output=lambda returned: returned.logits[:, at])
    plains = [partial(run, sample) for sample in range(len(ids))]
    inputs = {"input_ids": ids * mask, "attention_mask": mask}
    check_scores(explainer, inputs, plains, target=[3, 7])


def test_xlnet_with_embeddings():
    model = build_transformers(
        "XLNetForSequenceClassification",
        "XLNetConfig",
        vocab_size=WORDS,
        d_model=WIDTH,
        n_layer=2,
        n_head=HEADS,
        d_inner=24,
        num_labels=4,
    )
    ids = make_ids()
    embeddings = model.get_input_embeddings()(ids).detach()

    def run(sample: int, target: int) -> Plain:
        maps, hidden, hooks = [], [], []
        leaf = embeddings[sample : sample + 1].clone().requires_grad_()
        for layer in model.transformer.layer:
            hooks += [
                layer.register_forward_pre_hook(lambda _m, args: hidden.append(args[0])),
                layer.rel_attn.dropout.register_forward_hook(
                    lambda _m, args, _o: maps.append(args[0]) if args[0].dim() == 4 else None
                ),
            ]
        logits = model(inputs_embeds=leaf).logits
        for hook in hooks:
            hook.remove()
        last = ids.shape[1] - 1
        return Plain(
            logit=logits[0, target],
            centered=center(logits)[0, target],
            maps=maps,
            hidden=hidden,
            tokens_first=True,
            inputs=leaf,
            read={last: 1.0},
            units=list(range(last + 1)),
        )

    plains = [partial(run, sample) for sample in range(len(ids))]
    check_scores(Explainer(model), {"inputs_embeds": embeddings}, plains, target=[3, 1])


def _build_wav2vec2():
    return build_transformers(
        "Wav2Vec2ForSequenceClassification",
        "Wav2Vec2Config",
        **{k: v for k, v in TEXT.items() if k != "max_position_embeddings"},
        feat_extract_norm="layer",
        conv_dim=(8, 8),
        conv_kernel=(5, 3),
        conv_stride=(4, 2),
        conv_bias=True,
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        classifier_proj_size=8,
        num_labels=4,
        do_stable_layer_norm=False,
    )


def _make_signals():
    """Two signals, the second of which ends in padding."""
    signal = make_pixels(2, 85)
    mask = torch.ones(signal.shape, dtype=torch.long)
    mask[1, 61:] = 0
    return {"input_values": signal * mask, "attention_mask": mask}


def test_wav2vec2_with_padding():
    """Padding of a signal changes nothing; frames are units."""
    model, inputs = _build_wav2vec2(), _make_signals()
    eager = copy_eager(model)

    def run(sample: int, target: int) -> Plain:
        length = int(inputs["attention_mask"][sample].sum())
        leaf = inputs["input_values"][sample : sample + 1, :length].clone().requires_grad_()
        output = eager(leaf, output_attentions=True, output_hidden_states=True)
        maps = list(output.attentions)
        frames = maps[0].shape[-1]
        return Plain(
            logit=output.logits[0, target],
            centered=center(output.logits)[0, target],
            maps=maps,
            hidden=list(output.hidden_states[: len(maps)]),
            inputs=leaf,
            read=dict.fromkeys(range(frames), 1 / frames),
            units=list(range(frames)),
            keeps_identity=False,
        )

    plains = [partial(run, sample) for sample in range(2)]
    methods = ["rollout", "gae", "tiba", "whence"]
    check_scores(Explainer(model), inputs, plains, target=[3, 1], methods=methods)


def test_all_of_a_signal_with_padding_counts():
    """No value of the signal is lost at its end, where a unit is half padding."""
    model, inputs = _build_wav2vec2(), _make_signals()
    leaf = inputs["input_values"].clone().requires_grad_()
    logits = model(leaf, attention_mask=inputs["attention_mask"]).logits
    (gradient,) = torch.autograd.grad(logits[:, 1].sum(), leaf)
    found = Explainer(model).explain(inputs, 1, method="input_x_gradient").scores
    assert torch.allclose(found.sum(-1), (gradient * leaf).sum(-1), rtol=1e-5)
