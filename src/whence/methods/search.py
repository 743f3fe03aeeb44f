"""Choose the most faithful of many explanations (Mylonas, Mollas, Tsoumakas; DMKD 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from whence._util.random import SeededRandom
from whence.errors import WhenceError
from whence.evidence import Evidence
from whence.methods.registry import Method, build, get, register
from whence.methods.shared.aggregation import (
    HEADS,
    LAYERS,
    ROWS,
    Aggregation,
    aggregate_attention,
    list_aggregations,
)
from whence.methods.shared.deletion import rate_by_area, rate_by_rank
from whence.rules.balanced import Gradients
from whence.tracing.ops.products import HALF_TYPES


@register("search", aliases=("arbitration",))
@dataclass(frozen=True)
class Search(Method):
    r"""The most faithful of many explanations, chosen for each input and class.

    Candidates are ways to aggregate the attention maps :math:`A^{(b)}_h`, or other methods.
    Aggregations are all combinations of

    - heads: their mean; :math:`\mathbb{E}_h \max(\nabla A_h \odot A_h, 0)`; a single one,
    - layers: their mean; the product :math:`A^{(B)} \cdots A^{(1)}`; the product of
      :math:`I + A^{(b)}` with rows divided by their sum, as in rollout; a single one,
    - rows: attention of the pooled tokens, those that the classifier reads; attention to these
      tokens; the mean or the maximum of each column.

    Each candidate's scores are rated by deleting tokens (their pixels or embeddings become 0).
    With :math:`p` the probability of the class and :math:`x_{-k}` the input without the fraction
    k of tokens that have the highest, or the lowest, scores, ``"area"`` is

    .. math:: \mathbb{E}_k \left[ p(x_{-k}^{lowest}) - p(x_{-k}^{highest}) \right],

    and ``"ranked"``, the authors', is :math:`\sum_t (p(x) - p(x_{-t})) / rank(t)` over single
    tokens t. The best candidate's scores are returned, the first of those that are equally good
    up to rounding. Which one that was stands in the explanation's ``details``.

    Attributes:
        candidates: What is compared: ``"aggregations"`` or ``"methods"``.
        methods: Names of the methods to compare, with their default options.
        heads: ``"mean"``, ``"gradient"``, ``"each"`` for all single heads, or a head's number.
        layers: ``"mean"``, ``"product"``, ``"rollout"``, ``"each"``, or a layer's number.
        rows: ``"read"``, ``"to"``, ``"mean"``, ``"max"``.
        first_layer: The first layer that takes part.
        last_layer: The last one; -1 for the model's last.
        budget: How many candidates are rated at most. If there are more, aggregations over all
            heads and layers come first, and some of the others are drawn; of methods, the first
            ones are taken.
        score: How faithfulness is rated, ``"area"`` or ``"ranked"``.
        fractions: Which fractions of the tokens ``"area"`` deletes.
        seed: Of the drawn candidates.
        gradients: ``"plain"``, ``"balanced"`` or ``"residual"`` ones, in all candidates that use
            gradients.
    """

    needs = ("attention", "gradient", "forwards")
    citation = (
        "Mylonas, Mollas, Tsoumakas: An Attention Matrix for Every Decision: Faithfulness-based "
        "Arbitration Among Multiple Attention-Based Interpretations of Transformers in Text "
        "Classification, Data Mining and Knowledge Discovery 2023"
    )
    cost = "3 + 2 × budget × fractions, or 4 + tokens if score is ranked"  # noqa: RUF001
    needs_one_sequence = True
    unsteady_types = HALF_TYPES

    candidates: Literal["aggregations", "methods"] = "aggregations"
    methods: tuple[str, ...] = ("gae", "rollout", "raw_attention", "tiba")
    heads: tuple[str, ...] = HEADS
    layers: tuple[str, ...] = LAYERS
    rows: tuple[str, ...] = ROWS
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
        for option, words in (("heads", HEADS), ("layers", LAYERS), ("rows", ROWS)):
            given = getattr(self, option)
            numbers = option != "rows"
            known = [word in words or (numbers and word.isdecimal()) for word in given]
            if not given or not all(known):
                number = ", or numbers" if numbers else ""
                raise WhenceError(f"{option}={given} must be some of {', '.join(words)}{number}.")
        if self.candidates == "methods" and not self.methods:
            raise WhenceError("Name the methods to choose from, such as methods=('tiba',).")
        if self.candidates == "methods" and any(get(name) is Search for name in self.methods):
            raise WhenceError("Method 'search' cannot be one of the methods it chooses from.")

    @property
    @override
    def propagates(self) -> bool:
        names = self.methods[: self.budget] if self.candidates == "methods" else ()
        return any(build(name, {}).propagates for name in names)

    @override
    def __call__(self, evidence: Evidence) -> Tensor:
        settings: list[dict[str, str]]
        if self.candidates == "methods":
            names = list(dict.fromkeys(self.methods))
            total, names = len(names), names[: self.budget]
            settings = [{"method": name} for name in names]
            scores = self._explain_by_methods(evidence, names)
        else:
            layers = self._select_layers(len(evidence.attention))
            heads = min(attention.shape[1] for attention in evidence.attention)
            every = list_aggregations(self.heads, self.layers, self.rows, (heads, layers))
            total, chosen = len(every), self._draw_within_budget(every)
            settings = [one._asdict() for one in chosen]
            scores = aggregate_attention(evidence, chosen, layers)
        if self.score == "area":
            ratings = rate_by_area(evidence, scores, self.fractions)
        else:
            ratings = rate_by_rank(evidence, scores)
        best = _find_first_best(ratings)
        highest = ratings.gather(0, best[None])[0]
        evidence.details = [
            [
                {
                    "setting": settings[int(best[target, sample])],
                    "faithfulness": float(highest[target, sample]),
                    "rated": len(settings),
                    "candidates": total,
                }
                for target in range(len(best))
            ]
            for sample in range(evidence.batch)
        ]
        return scores.gather(0, best[None, ..., None].expand(1, *scores.shape[1:]))[0]

    def _explain_by_methods(self, evidence: Evidence, names: Sequence[str]) -> Tensor:
        """Compute the scores of methods, (candidates, classes, batch, tokens)."""
        scores = []
        for name in names:
            takes_gradients = any(field.name == "gradients" for field in fields(get(name)))  # type: ignore[arg-type]
            method = build(name, {"gradients": self.gradients} if takes_gradients else {})
            derived = evidence.derive(method.needs, method.gradient_rules, method.class_specific)
            scores.append(method(derived))
        return torch.stack(scores)

    def _select_layers(self, layers: int) -> range:
        last = layers - 1 if self.last_layer == -1 else self.last_layer
        if not 0 <= self.first_layer <= last < layers:
            raise WhenceError(
                f"first_layer={self.first_layer} and last_layer={self.last_layer} name no layers: "
                f"the model has {layers} attention layers, 0 to {layers - 1}."
            )
        return range(self.first_layer, last + 1)

    def _draw_within_budget(self, aggregations: list[Aggregation]) -> list[Aggregation]:
        joint = [one for one in aggregations if one.is_joint][: self.budget]
        others = [one for one in aggregations if not one.is_joint]
        room = self.budget - len(joint)
        if len(others) > room:
            others = [others[at] for at in SeededRandom(self.seed).draw_subset(room, len(others))]
        return [*joint, *others]


def _find_first_best(ratings: Tensor) -> Tensor:
    """Find the first candidate, in the first dimension, that no other clearly exceeds."""
    rounding = 16 * torch.finfo(ratings.dtype).eps
    return (ratings >= ratings.amax(0) - rounding).int().argmax(0)
