"""Attentions of encoder-decoders of transformers, and methods in plain loops over them."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.families.flows import INPUT, Plan, Run, follow_rows, run_plainly

DECODER = "decoder"
Call = Callable[[nn.Module], Tensor]
Listing = Callable[[nn.Module], list["Attention"]]


@dataclass
class Attention:
    """One attention of a model.

    Attributes:
        queries: The sequence of the tokens that attend.
        keys: The sequence that is attended to.
        values: The module that projects values.
        output: The module that joins heads.
        entering: The module that the residual stream enters first.
        leaving: The module that gives the block's output.
        leaves_before: Whether the block's output is what enters that module.
        has_skip: Whether what attends is kept; of what is a constant, nothing is.
    """

    queries: str
    keys: str
    values: nn.Module
    output: nn.Linear
    entering: nn.Module
    leaving: nn.Module
    leaves_before: bool = False
    has_skip: bool = True


def list_attentions(model: Any, constant: str | None = None) -> list[Attention]:
    """The attentions of a model of the families T5 and BART, in the order of computation.

    Args:
        model: The model.
        constant: The sequence whose input is a constant. If it is the encoder's, attention to it is
            but a part of what follows the decoder's attention to itself. If it is the decoder's,
            its first attention to itself is a constant, too.
    """
    body = getattr(model, "transformer", model)
    encoder, decoder = body.get_encoder(), body.get_decoder()
    decoder = decoder.model.decoder if hasattr(decoder, "model") else decoder  # TrOCR
    is_t5 = hasattr(encoder, "block")
    every = _list_t5(encoder, decoder) if is_t5 else _list_bart(encoder, decoder)
    if constant is None:
        return every
    if constant == DECODER:
        first = next(n for n, one in enumerate(every) if one.queries == DECODER)
        return [*every[:first], replace(every[first + 1], has_skip=False), *every[first + 2 :]]
    layers = decoder.block if is_t5 else decoder.layers
    own = [one for one in every if one.queries == one.keys == DECODER]
    return [
        replace(one, leaving=layer, leaves_before=False)
        for one, layer in zip(own, layers, strict=True)
    ]


def _list_t5(encoder: Any, decoder: Any) -> list[Attention]:
    found = []
    for block in encoder.block:
        own = block.layer[0].SelfAttention
        found.append(Attention(INPUT, INPUT, own.v, own.o, block.layer[0], block))
    for block in decoder.block:
        own, cross = block.layer[0].SelfAttention, block.layer[1].EncDecAttention
        found.append(Attention(DECODER, DECODER, own.v, own.o, block.layer[0], block.layer[0]))
        found.append(Attention(DECODER, INPUT, cross.v, cross.o, block.layer[1], block))
    return found


def _list_bart(encoder: Any, decoder: Any) -> list[Attention]:
    found = []
    for layer in encoder.layers:
        own = layer.self_attn if hasattr(layer, "self_attn") else layer.attention  # a ViT
        output = own.out_proj if hasattr(own, "out_proj") else own.o_proj
        found.append(Attention(INPUT, INPUT, own.v_proj, output, layer, layer))
    # Whisper and the like normalise before, BART and the like after the attention.
    before = type(decoder).__name__.startswith(("Whisper", "Pegasus", "M2M100"))
    for layer in decoder.layers:
        own, cross = layer.self_attn, layer.encoder_attn
        norm = layer.encoder_attn_layer_norm
        end, start = (norm, norm) if before else (layer.self_attn_layer_norm, cross)
        values = own.v_proj, own.out_proj
        found.append(Attention(DECODER, DECODER, *values, layer, end, leaves_before=before))
        found.append(Attention(DECODER, INPUT, cross.v_proj, cross.out_proj, start, layer))
    return found


def make_plan(attentions: list[Attention], source: int, target: int) -> Plan:
    """A plan of attentions of which the head reads the decoder's last token."""
    plan = Plan(lengths={INPUT: source, DECODER: target})
    for one in attentions:
        plan.attend(one.queries, one.keys, has_skip=one.has_skip)
    plan.read_token(DECODER, -1)
    return plan


def run_model(model: Any, call: Call, listing: Listing) -> Run:
    """What a model in the open gives for one sample, at the attentions that are listed."""
    listed = [one.values for one in listing(model)]
    used = [one.values in listed for one in list_attentions(model)]
    return run_plainly(
        model,
        call,
        lambda own: [one.entering for one in listing(own)],
        lambda maps: [one for one, is_used in zip(maps, used, strict=True) if is_used],
    )


# Values ----------------------------------------------------------------------------------------


@contextmanager
def _keep(module: nn.Module, before: bool = False) -> Iterator[list[Tensor]]:
    """Keep what a module puts out, or what enters it."""
    kept: list[Tensor] = []

    def add(_module: nn.Module, args: Any, output: Any) -> None:
        value = args[0] if before else output
        kept.append((value[0] if isinstance(value, tuple) else value).detach())

    hook = module.register_forward_hook(add)
    try:
        yield kept
    finally:
        hook.remove()


def compute_norms(model: Any, call: Call, run: Run, listing: Listing) -> list[Tensor]:
    """For each attention, norms of what each key adds to each query: (1, queries, keys)."""
    own, norms = copy.deepcopy(model), []
    for number, one in enumerate(listing(own)):
        with _keep(one.values) as values, torch.no_grad():
            call(own)
        maps = run.maps[number][0]  # (heads, queries, keys)
        heads = len(maps)
        by_head = values[0][0].double().unflatten(-1, (heads, -1))  # (keys, heads, width)
        weight = one.output.weight.detach().double().unflatten(1, (heads, -1))
        added = torch.zeros(*maps.shape[1:], weight.shape[0]).double()
        for h in range(heads):
            added += maps[h][..., None] * (by_head[:, h] @ weight[:, h].T)
        norms.append(added.norm(dim=-1)[None])
    return norms


def zero_values(model: Any, call: Call, listing: Listing) -> list[Tensor]:
    """For each attention, 1 - cos of the block's outputs without one key's value."""
    own, found = copy.deepcopy(model), []
    for one in listing(own):

        def run(key: int | None, one: Attention = one) -> Tensor:
            def zero(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
                changed = output.clone()
                if key is not None:
                    changed[:, key] = 0
                return changed

            hook = one.values.register_forward_hook(zero)
            with _keep(one.leaving, one.leaves_before) as kept, torch.no_grad():
                call(own)
            hook.remove()
            return kept[0][0].double()

        with _keep(one.values) as values:
            whole = run(None)
        distances = [
            1 - F.cosine_similarity(run(key), whole, dim=-1) for key in range(values[0].shape[1])
        ]
        found.append(torch.stack(distances, 1)[None])
    return found


def multiply_layers(plan: Plan, matrices: list[Tensor], in_block: bool) -> tuple[Tensor, Tensor]:
    """Follow rows of matrices that are divided by their sums; the skip counts as much as they do.

    Args:
        plan: The model's attentions.
        matrices: (1, queries, keys) for each.
        in_block: Whether self-attention's matrices have the skip connection inside.
    """
    own = copy.deepcopy(plan)
    for layer in own.layers:
        layer.has_skip &= layer.queries != layer.keys or not in_block
    shares = [one / one.sum(-1, keepdim=True).clamp(min=1e-300) for one in matrices]
    return follow_rows(own, shares, normalize=True)
