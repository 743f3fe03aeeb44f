"""Flows of tokens written with dense matrices: windows, merged tokens, several sequences.

A model is described by a plan: its attentions in the order of computation, each with the token that
every row and column of its map is, and the tokens that are made of others. Maps are those that the
model itself computes. Everything is of one sample.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tests.families.formulas import center, link_evidence, sum_reads

INPUT = "input"


@dataclass
class Layer:
    """One attention.

    Attributes:
        queries: The sequence of the tokens that attend.
        keys: The sequence that is attended to.
        rows: (groups, rows), the token of each row of the map; -1 is padding.
        columns: (groups, columns), the token of each column.
        has_skip: Whether tokens that attend are kept beside what they gather.
    """

    queries: str
    keys: str
    rows: Tensor
    columns: Tensor
    has_skip: bool = True


@dataclass
class Made:
    """Tokens that are made of those of other sequences: for each, (tokens, tokens of that one)."""

    tokens: str
    shares: dict[str, Tensor]


@dataclass
class Plan:
    """The steps of a model in the order of computation, and what its head reads.

    Attributes:
        steps: Attentions, and tokens made of others.
        lengths: The number of tokens of each sequence.
        read: How much the head reads each token, by the names of sequences.
        units: For the sequences that stand for the explained input, (tokens, units): of which
            units each token is; all tokens of the input in their order if left out.
    """

    steps: list[Layer | Made] = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=dict)
    read: dict[str, Tensor] = field(default_factory=dict)
    units: dict[str, Tensor] = field(default_factory=dict)

    @property
    def layers(self) -> list[Layer]:
        return [step for step in self.steps if isinstance(step, Layer)]

    @property
    def to_units(self) -> dict[str, Tensor]:
        return self.units or {INPUT: torch.eye(self.lengths[INPUT]).double()}

    def attend(self, queries: str, keys: str | None = None, **options: Any) -> None:
        """Add an attention without groups."""
        ends = queries, keys or queries
        rows, columns = (torch.arange(self.lengths[end])[None] for end in ends)
        self.steps.append(Layer(*ends, rows, columns, **options))

    def attend_in_groups(self, sequence: str, places: Tensor) -> None:
        """Add an attention of tokens to those of their own group."""
        self.steps.append(Layer(sequence, sequence, places, places))

    def make(self, tokens: str, **shares: Tensor) -> None:
        """Add tokens that are made of others."""
        self.lengths[tokens] = len(next(iter(shares.values())))
        self.steps.append(Made(tokens, {name: one.double() for name, one in shares.items()}))

    def read_mean(self, sequence: str) -> None:
        """Read the mean of the tokens of a sequence."""
        length = self.lengths[sequence]
        self.read = {sequence: torch.full((length,), 1 / length).double()}

    def read_token(self, sequence: str, position: int) -> None:
        """Read one token."""
        self.read = {sequence: torch.zeros(self.lengths[sequence]).double()}
        self.read[sequence][position] = 1


def partition(
    grid: tuple[int, int], window: int, shift: int = 0, roll_first: bool = False
) -> Tensor:
    """The token at each place of each window, (windows, places); -1 is padding.

    Tokens are rolled up and left by ``shift``, before or after padding at the bottom and the right.
    """
    rows, columns = grid
    padded = [-(-side // window) * window for side in grid]
    windows = []
    for top in range(0, padded[0], window):
        for left in range(0, padded[1], window):
            places = []
            for y in range(top, top + window):
                for x in range(left, left + window):
                    if roll_first:
                        inside = y < rows and x < columns
                        row, column = (y + shift) % rows, (x + shift) % columns
                    else:
                        row, column = (y + shift) % padded[0], (x + shift) % padded[1]
                        inside = row < rows and column < columns
                    places.append(row * columns + column if inside else -1)
            windows.append(places)
    return torch.tensor(windows)


def average_fields(
    grid: tuple[int, int], stride: int, kernel: int | None = None, padding: int | None = None
) -> tuple[Tensor, tuple[int, int]]:
    """Mean of the tokens under a kernel: (tokens, tokens before), and the grid that is made.

    Without a kernel, cells of stride by stride tokens; those at the margin may be incomplete.
    """
    rows, columns = grid
    if kernel is None:
        made = -(-rows // stride), -(-columns // stride)
        kernel, padding = stride, 0
    else:
        padding = kernel // 2 if padding is None else padding
        made = tuple((side + 2 * padding - kernel) // stride + 1 for side in grid)
    shares = torch.zeros(made[0] * made[1], rows * columns).double()
    for number in range(len(shares)):
        top, left = number // made[1] * stride - padding, number % made[1] * stride - padding
        for y in range(max(top, 0), min(top + kernel, rows)):
            for x in range(max(left, 0), min(left + kernel, columns)):
                shares[number, y * columns + x] = 1
    return shares / shares.sum(-1, keepdim=True), made


# What a model computes -------------------------------------------------------------------------


@dataclass
class Run:
    """What a model gives for one sample.

    Attributes:
        logit: The explained scalar.
        maps: For each attention that the logit depends on, (groups, heads, rows, columns).
        gradients: Gradients of the logit there.
        hidden: (tokens, width), what enters each attention's block.
        hidden_gradients: Gradients of the logit there.
        run_centered: Runs the model again, with each logit less the mean of its row.
    """

    logit: Tensor
    maps: list[Tensor]
    gradients: list[Tensor]
    hidden: list[Tensor] = field(default_factory=list)
    hidden_gradients: list[Tensor] = field(default_factory=list)
    run_centered: "Callable[[], Run] | None" = None


class _Softmaxes(TorchFunctionMode):
    """Collects what each softmax puts out."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: list[Tensor] = []

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == "softmax" and isinstance(result, Tensor):
            self.maps.append(result)
        return result


def run_plainly(
    model: nn.Module,
    call: Callable[[nn.Module], Tensor],
    blocks: Callable[[nn.Module], Sequence[nn.Module]] | None = None,
    used: Callable[[list[Tensor]], list[Tensor]] = list,
    maps_of: Callable[[nn.Module], Sequence[nn.Module]] | None = None,
    heads: Callable[[Tensor], Tensor] | None = None,
    is_centered: bool = False,
) -> Run:
    """Run a copy of a model on one sample.

    Args:
        model: Its attention is computed in the open.
        call: Calls the model, and returns the explained scalar.
        blocks: Lists the modules that what enters each attention's block enters first.
        used: Selects maps among the outputs of all softmaxes.
        maps_of: Lists modules that maps enter, where they are not what softmaxes put out.
        heads: Gives a map the shape (groups, heads, rows, columns), where it is not
            (..., heads, rows, columns).
        is_centered: Whether each logit is less the mean of its row.
    """
    own = copy.deepcopy(model)
    if is_centered:
        own.register_forward_hook(lambda _m, _args, output: center(output))
    for module in own.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    hidden: list[Tensor] = []
    entering: list[Tensor] = []
    for module in maps_of(own) if maps_of else ():
        module.register_forward_pre_hook(lambda _m, args: entering.append(args[0]))

    def keep(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden.append(args[0] if args else kwargs["hidden_states"])

    for block in blocks(own) if blocks else ():
        block.register_forward_pre_hook(keep, with_kwargs=True)
    with _Softmaxes() as found:
        logit = call(own)
    maps = used(entering if maps_of else found.maps)
    gradients = torch.autograd.grad(logit, [*maps, *hidden])
    split = heads or _split_groups
    return Run(
        logit.detach(),
        [split(one.detach().double()) for one in maps],
        [split(one.double()) for one in gradients[: len(maps)]],
        [x.detach().double().flatten(0, -2) for x in hidden],
        [g.double().flatten(0, -2) for g in gradients[len(maps) :]],
        lambda: run_plainly(model, call, blocks, used, maps_of, heads, is_centered=True),
    )


def _split_groups(maps: Tensor) -> Tensor:
    """Maps of one sample as (groups, heads, rows, columns)."""
    return maps.reshape(-1, *maps.shape[-3:])


# Methods ---------------------------------------------------------------------------------------


def weigh_maps(method: str, run: Run, relevance: list[Tensor] | None = None) -> list[Tensor]:
    """For each attention, what a method multiplies: (groups, rows, columns)."""
    if method in ("rollout", "raw_attention"):
        return [one.mean(1) for one in run.maps]
    if method == "partial_lrp":
        assert relevance is not None
        last = relevance[-1].double().reshape(run.maps[-1].shape).clamp(min=0).mean(1)
        return [torch.zeros_like(one[:, 0]) for one in run.maps[:-1]] + [last]
    factors = run.maps if method == "gae" else relevance
    assert factors is not None
    return [
        (gradient * factor.double().reshape(gradient.shape)).clamp(min=0).mean(1)
        for gradient, factor in zip(run.gradients, factors, strict=True)
    ]


def place_map(layer: Layer, lengths: dict[str, int], weights: Tensor) -> Tensor:
    """A map of groups as a dense one, (queries, keys + 1): what padding gets comes last.

    A token with several rows, such as a class token in each frame, has their mean.
    """
    dense = torch.zeros(lengths[layer.queries], lengths[layer.keys] + 1).double()
    count = torch.zeros(len(dense), 1).double()
    for group, (rows, columns) in enumerate(zip(layer.rows, layer.columns, strict=True)):
        for i, row in enumerate(rows.tolist()):
            if row >= 0:
                dense[row].index_add_(0, columns % dense.shape[1], weights[group, i])
                count[row] += 1
    return dense / count.clamp(min=1)


def follow_rows(
    plan: Plan, weights: list[Tensor], normalize: bool = False
) -> tuple[Tensor, Tensor]:
    """What arrives at the units of the input: by skip connections alone, and by attention."""
    nothing = {name: torch.zeros(length).double() for name, length in plan.lengths.items()}
    kept, moved = nothing | plan.read, dict(nothing)
    remaining = list(weights)
    for step in reversed(plan.steps):
        if isinstance(step, Made):
            for rows in (kept, moved):
                for of, shares in step.shares.items():
                    rows[of] = rows[of] + rows[step.tokens] @ shares
                rows[step.tokens] = torch.zeros_like(rows[step.tokens])
            continue
        dense = place_map(step, plan.lengths, remaining.pop())
        sums = torch.ones(len(dense)).double()
        if normalize:
            sums = dense.sum(-1) + int(step.has_skip)
            sums[sums == 0] = 1
        both = kept[step.queries] / sums, moved[step.queries] / sums
        if not step.has_skip:
            kept[step.queries], moved[step.queries] = (torch.zeros_like(one) for one in both)
        else:
            kept[step.queries], moved[step.queries] = both
        moved[step.keys] = moved[step.keys] + (sum(both) @ dense)[:-1]
    assert not remaining
    ends = plan.to_units.items()
    return sum(kept[name] @ of for name, of in ends), sum(moved[name] @ of for name, of in ends)


def compute_scores(
    method: str,
    plan: Plan,
    run: Run,
    relevance: list[Tensor] | None = None,
    keeps_identity: bool = False,
) -> Tensor:
    """Scores of the input's tokens by `rollout`, `gae`, `tiba` or `raw_attention`."""
    weights = weigh_maps(method, run, relevance)
    if method in ("raw_attention", "partial_lrp"):
        weights = [torch.zeros_like(one) for one in weights[:-1]] + weights[-1:]
        return follow_rows(plan, weights)[1]
    kept, moved = follow_rows(plan, weights, normalize=method == "rollout")
    return kept + moved if method == "rollout" or keeps_identity else moved


def find_shares(plan: Plan) -> dict[str, Tensor]:
    """Of what units of the input each token of each sequence is made, if of any."""
    known = plan.to_units
    count = next(iter(known.values())).shape[1]
    nothing = {name: torch.zeros(tokens, count) for name, tokens in plan.lengths.items()}
    shares = {name: known.get(name, none.double()) for name, none in nothing.items()}
    for step in plan.steps:
        if isinstance(step, Made):
            shares[step.tokens] = sum(own @ shares[of] for of, own in step.shares.items())
    return shares


def find_evidence(plan: Plan, run: Run, is_cut: bool = True) -> Tensor:
    """`whence` with plain gradients; units that are words are not linked."""
    of = find_shares(plan)
    count = next(iter(of.values())).shape[1]
    read, reached = (torch.zeros(count).double() for _ in range(2))
    held: list[Tensor] = []
    attention = torch.zeros(count, count).double()
    for layer, maps, gradients, x, g in zip(
        plan.layers, run.maps, run.gradients, run.hidden, run.hidden_gradients, strict=True
    ):
        at_keys = torch.zeros(plan.lengths[layer.keys] + 1).double()  # padding comes last
        for group, columns in enumerate(layer.columns):
            read_here = sum_reads(maps[group], gradients[group])
            at_keys.index_add_(0, columns % len(at_keys), read_here)
        read += at_keys[:-1] @ of[layer.keys]
        if of[layer.queries].any():  # these stand for parts of the input
            held.append((x * g).sum(-1) @ of[layer.queries])
        reached += g.any(-1).double() @ of[layer.queries]
        dense = place_map(layer, plan.lengths, maps.sum(1))[:, :-1]
        attention += of[layer.queries].T @ dense @ of[layer.keys]
    if is_cut:
        return link_evidence(sum(held) + 4 * read, attention, reached > 0)
    early = held[: max(1, len(held) // 2)]
    return sum(early) / len(early) + read


def weigh_hidden_states(plan: Plan, run: Run) -> Tensor:
    """`attcat`: hidden state times gradient, by the attention that a token gets in its layer."""
    of = find_shares(plan)
    scores = torch.zeros(next(iter(of.values())).shape[1]).double()
    for layer, maps, x, g in zip(
        plan.layers, run.maps, run.hidden, run.hidden_gradients, strict=True
    ):
        if layer.queries == layer.keys:
            dense = place_map(layer, plan.lengths, maps.mean(1))[:, :-1]
            scores += (dense.mean(0) * (x * g).sum(-1)) @ of[layer.queries]
    return scores
