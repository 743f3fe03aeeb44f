"""An Attention Matrix for Every Decision (Mylonas, Mollas, Tsoumakas; DMKD 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from whence._util.random import SeededRandom
from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, build, get, register
from whence.methods.shared.deletion import rate_by_area, rate_by_rank
from whence.methods.shared.maps import lowest_at_pooled, one_sequence
from whence.rules.balanced import Gradients

_HEADS = ("mean", "gradient", "each")
_LAYERS = ("mean", "product", "rollout", "each")
_ROWS = ("read", "to", "mean", "max")


class Setting(NamedTuple):
    """One way to make a single row of all attention maps."""

    heads: str
    layers: str
    rows: str

    @property
    def joint(self) -> bool:
        """Whether all heads and all layers take part."""
        return not (self.heads.isdecimal() or self.layers.isdecimal())


@register("search", aliases=("arbitration",))
@dataclass(frozen=True)
class Search(Method):
    r"""The most faithful of many explanations, chosen for each input and class.

    Candidates are ways to aggregate the attention maps :math:`A^{(b)}_h`, or other methods.
    Aggregations are all combinations of

    - heads: their mean; :math:`\mathbb{E}_h \max(\nabla A_h \odot A_h, 0)`; a single one,
    - layers: their mean; the product :math:`A^{(B)} \cdots A^{(1)}`; the product of
      :math:`I + A^{(b)}` with rows divided by their sum, as in rollout; a single one,
    - rows: what is read, attention of the tokens that the classifier reads; what reads them,
      attention to these tokens; the mean or the maximum of each column.

    Each candidate's scores are rated by deleting tokens (0 in the place of pixels or embeddings).
    With :math:`p` the probability of the class and :math:`x_{-k}` the input without the fraction
    k of tokens that have the highest, or the lowest, scores, ``"area"`` is

    .. math::
        \mathbb{E}_k \left[ p(x_{-k}^{lowest}) - p(x_{-k}^{highest}) \right],

    and ``"ranked"``, the authors', is :math:`\sum_t (p(x) - p(x_{-t})) / rank(t)` over single
    tokens t. The best candidate's scores are returned, the first of those that are equally good
    up to rounding. Which one that was stands in the explanation's ``found``.

    Attributes:
        candidates: What is compared: ``"aggregations"`` or ``"methods"``.
        methods: Names of the methods to compare, with their default options.
        heads: ``"mean"``, ``"gradient"``, ``"each"`` for all single heads, or a head's number.
        layers: ``"mean"``, ``"product"``, ``"rollout"``, ``"each"``, or a layer's number.
        rows: ``"read"``, ``"to"``, ``"mean"``, ``"max"``.
        first_layer: The first layer that takes part.
        last_layer: The last one; -1 for the model's last.
        budget: How many candidates are rated at most. If there are more, aggregations over all
            heads and layers come first, and of the others a random part is taken; of methods,
            the first ones.
        score: How faithfulness is rated, ``"area"`` or ``"ranked"``.
        fractions: Which parts of the tokens ``"area"`` deletes.
        seed: Where random numbers start.
        gradients: ``"plain"`` or ``"balanced"`` ones, in all candidates that use gradients.
    """

    needs: ClassVar[tuple[str, ...]] = ("attention", "gradient", "forwards")
    citation: ClassVar[str] = (
        "Mylonas, Mollas, Tsoumakas: An Attention Matrix for Every Decision: Faithfulness-based "
        "Arbitration Among Multiple Attention-Based Interpretations of Transformers in Text "
        "Classification, Data Mining and Knowledge Discovery 2023"
    )
    cost: ClassVar[str] = "3 + 2 × budget × fractions, or 4 + tokens if score is ranked"  # noqa: RUF001

    candidates: Literal["aggregations", "methods"] = "aggregations"
    methods: tuple[str, ...] = ("gae", "rollout", "raw_attention", "tiba")
    heads: tuple[str, ...] = _HEADS
    layers: tuple[str, ...] = _LAYERS
    rows: tuple[str, ...] = _ROWS
    first_layer: int = 0
    last_layer: int = -1
    budget: int = 64
    score: Literal["area", "ranked"] = "area"
    fractions: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5)
    seed: int = 0
    gradients: Gradients = "plain"

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise WhenceError(f"budget={self.budget} must be at least 1.")
        if not self.fractions or not all(0 < fraction <= 1 for fraction in self.fractions):
            raise WhenceError(
                f"fractions={self.fractions} must be numbers above 0 and up to 1, such as 0.1,0.5."
            )
        for option, words in (("heads", _HEADS), ("layers", _LAYERS), ("rows", _ROWS)):
            given = getattr(self, option)
            unknown = [
                word
                for word in given
                if word not in words and (option == "rows" or not word.isdecimal())
            ]
            if unknown or not given:
                number = "" if option == "rows" else ", or numbers"
                raise WhenceError(f"{option}={given} must be some of {', '.join(words)}{number}.")
        if self.candidates == "methods":
            self._check_methods()

    def _check_methods(self) -> None:
        if not self.methods:
            raise WhenceError("Name the methods to choose from, such as methods=('tiba',).")
        if any(get(name) is Search for name in self.methods):
            raise WhenceError("Method 'search' cannot be one of the methods it chooses from.")

    @property
    def propagates(self) -> bool:  # noqa: D102
        names = self.methods[: self.budget] if self.candidates == "methods" else ()
        return any(build(name, {}).propagates for name in names)

    def __call__(self, evidence: Evidence) -> Tensor:  # noqa: D102
        if self.candidates == "methods":
            names = list(dict.fromkeys(self.methods))
            settings: list[dict[str, Any]] = [{"method": name} for name in names[: self.budget]]
            total = len(names)
            scores = self._by_methods(evidence, names[: self.budget])
        else:
            layers = self._range(len(evidence.attention))
            ways = self._ways(min(m.shape[1] for m in evidence.attention), layers)
            total = len(ways)
            ways = self._within_budget(ways)
            settings = [way._asdict() for way in ways]
            scores = _aggregated(evidence, ways, layers)
        if self.score == "area":
            faithful = rate_by_area(evidence, scores, self.fractions)
        else:
            faithful = rate_by_rank(evidence, scores)
        best = _first_best(faithful)
        rated = faithful.gather(0, best[None])[0]
        evidence.details = [
            [
                {
                    "setting": settings[int(best[target, sample])],
                    "faithfulness": float(rated[target, sample]),
                    "rated": len(settings),
                    "candidates": total,
                }
                for target in range(len(best))
            ]
            for sample in range(evidence.batch)
        ]
        return scores.gather(0, best[None, ..., None].expand(1, *scores.shape[1:]))[0]

    def _by_methods(self, evidence: Evidence, names: Sequence[str]) -> Tensor:
        """Scores of methods, (candidates, classes, batch, tokens)."""
        scores = []
        for name in names:
            takes_gradients = any(field.name == "gradients" for field in fields(get(name)))  # type: ignore[arg-type]
            method = build(name, {"gradients": self.gradients} if takes_gradients else {})
            found = evidence.derive(method.needs, method.gradient_rules, method.class_specific)
            scores.append(method(found))
        return torch.stack(scores)

    def _range(self, layers: int) -> range:
        last = layers - 1 if self.last_layer == -1 else self.last_layer
        if not 0 <= self.first_layer <= last < layers:
            raise WhenceError(
                f"first_layer={self.first_layer} and last_layer={self.last_layer} name no layers: "
                f"the model has {layers} attention layers, 0 to {layers - 1}."
            )
        return range(self.first_layer, last + 1)

    def _ways(self, heads: int, layers: range) -> list[Setting]:
        """All aggregations, those over all heads and layers first."""
        every_head = _expanded(self.heads, range(heads), "heads")
        every_layer = _expanded(self.layers, layers, "layers")
        rows = dict.fromkeys(self.rows)
        ways = [Setting(h, b, r) for h in every_head for b in every_layer for r in rows]
        return sorted(ways, key=lambda way: not way.joint)

    def _within_budget(self, ways: list[Setting]) -> list[Setting]:
        first = [way for way in ways if way.joint][: self.budget]
        others = [way for way in ways if not way.joint]
        room = self.budget - len(first)
        if len(others) > room:
            others = [others[at] for at in SeededRandom(self.seed).draw_subset(room, len(others))]
        return [*first, *others]


def _first_best(faithful: Tensor) -> Tensor:
    """Which candidate, of the first dimension, is the first that no other clearly exceeds."""
    rounding = 16 * torch.finfo(faithful.dtype).eps
    return (faithful >= faithful.amax(0) - rounding).int().argmax(0)


def _expanded(words: Sequence[str], numbers: range, option: str) -> list[str]:
    """Words with "each" replaced by all numbers."""
    known = [str(number) for number in numbers]
    found: dict[str, None] = {}
    for word in words:
        word = str(int(word)) if word.isdecimal() else word
        if word.isdecimal() and word not in known:
            raise WhenceError(
                f"{option}={word} does not exist here: choose from {known[0]} to {known[-1]}."
            )
        found.update(dict.fromkeys(known if word == "each" else [word]))
    return list(found)


def _aggregated(evidence: Evidence, ways: Sequence[Setting], layers: range) -> Tensor:
    """Scores of aggregations, (candidates, classes, batch, tokens)."""
    one_sequence(evidence)
    tokens = evidence.pooling.shape[-1]
    for layer in layers:
        if evidence.attention[layer].shape[-2:] != (tokens, tokens):
            queries, keys = evidence.attention[layer].shape[-2:]
            raise WhenceError(
                f"Layer {layer} attends from {queries} to {keys} tokens, but the classifier reads "
                f"{tokens}: maps of different sizes cannot be aggregated. candidates='methods' "
                f"works with whatever those methods do."
            )
    scores: dict[Setting, Tensor] = {}
    for heads in dict.fromkeys(way.heads for way in ways):
        maps = {layer: _of_heads(evidence, heads, layer) for layer in layers}
        for joining in dict.fromkeys(way.layers for way in ways if way.heads == heads):
            joined = _of_layers(maps, joining)
            for way in ways:
                if (way.heads, way.layers) == (heads, joining):
                    scores[way] = lowest_at_pooled(_of_rows(evidence, joined, way.rows), evidence)
    return torch.stack([scores[way] for way in ways])


def _of_heads(evidence: Evidence, heads: str, layer: int) -> Tensor:
    """One map of a layer, (classes or 1, batch, tokens, tokens)."""
    attention = evidence.attention[layer]
    if heads == "gradient":
        return (evidence.gradient[layer] * attention).clamp_(min=0).mean(-3)
    return (attention.mean(1) if heads == "mean" else attention[:, int(heads)])[None]


def _of_layers(maps: dict[int, Tensor], joining: str) -> Tensor:
    """One map of all."""
    if joining.isdecimal():
        return maps[int(joining)]
    each = list(maps.values())
    if joining == "mean":
        return torch.stack(each).mean(0)
    if joining == "rollout":
        identity = torch.eye(each[0].shape[-1], dtype=each[0].dtype, device=each[0].device)
        each = [(identity + one) / (1 + one.sum(-1, keepdim=True)) for one in each]
    joined = each[0]
    for one in each[1:]:
        joined = one @ joined
    return joined


def _of_rows(evidence: Evidence, joined: Tensor, rows: str) -> Tensor:
    """One row of a map, (classes, batch, tokens). Rows of padding do not count."""
    if rows == "read":
        return (evidence.pooling[..., None, :] @ joined)[..., 0, :]
    if rows == "to":
        return (joined @ evidence.pooling[..., None])[..., 0]
    real = evidence.token_mask[..., None]
    joined = joined * real
    row = joined.amax(-2) if rows == "max" else joined.sum(-2) / real.sum(-2)
    return row.expand_as(evidence.pooling)
