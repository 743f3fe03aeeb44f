"""Measure faithfulness: delete parts of one input in the order of scores, and watch a class.

The steps are those of Chefer, Gur, Wolf (CVPR 2021): 10, 20, … 90 % of the units are deleted, the
most relevant first, the least relevant first, or at random. Pixels of a photo become black; words
of a text are deleted, and the rest is tokenised again.

    >>> result = whence.compare("cat.jpg", ["tiba", "gae"], faithfulness=True)  # doctest: +SKIP
    >>> result.faithfulness.find_best()[0].method  # doctest: +SKIP
    >>> result.faithfulness.get("gae").get_input(3)  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.faithfulness.photos import PhotoUnits
from whence.faithfulness.result import Faithfulness, MethodCurves
from whence.faithfulness.texts import TextUnits
from whence.metrics.curves import compute_curves
from whence.metrics.deletion import FRACTIONS, Progress, count_units, delete_in_order, rank_units
from whence.models import LoadedModel, PreparedBatch
from whence.models.forward import choose_chunk_size

DRAWS = 5
"""How many random orders the random curve is the mean of by default."""


def measure(
    loaded: LoadedModel,
    prepared: PreparedBatch,
    explanations: Mapping[str, Explanation],
    *,
    against: int | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Progress | None = None,
) -> Faithfulness:
    """Delete parts of one input in the orders that explanations give, and run the model on it.

    Equal maps, and random orders, which know no class, are run once for all, in batches that fit
    into memory.

    Args:
        loaded: The model.
        prepared: The input, a batch of one, as ``loaded.prepare([photo])`` returns it.
        explanations: Of that input, each of one class or several, by the names of their methods.
        against: The class that the classes were explained against: the probability is then that
            of a class where only these two are possible, the sigmoid of the difference of logits.
        draws: How many random orders are averaged; 0 to leave them out.
        seed: Of the random orders.
        progress: Called with the number of finished forward passes and the number of all.

    Raises:
        WhenceError: There is nothing to delete, or no probability to watch.
    """
    if not explanations:
        raise WhenceError("Name at least one method whose faithfulness is measured.")
    if draws < 0:
        raise WhenceError(f"The number of random draws is 0 or more, not {draws}.")
    if len(prepared) != 1 or any(len(one.scores) != 1 for one in explanations.values()):
        raise WhenceError("Faithfulness is measured on one input at a time, not on a batch.")
    if any(e.logits.shape[-1] == 1 and not e.multi_label for e in explanations.values()):
        raise WhenceError(
            f"The model '{loaded.name}' answers with a single number, not with probabilities of "
            f"classes that could be watched."
        )
    units = (PhotoUnits if loaded.kind == "image" else TextUnits)(loaded, prepared)
    first = next(iter(explanations.values()))
    scores = torch.cat([units.score(one) for one in explanations.values()])
    drawn = units.draw_scores(draws, seed, first).to(scores)
    orders = (rank_units(scores, "highest"), rank_units(scores, "lowest"))
    ranks = torch.cat([*orders, rank_units(drawn, "highest")]).int()
    logits = delete_in_order(
        ranks,
        count_units(ranks.shape[1], FRACTIONS),
        units.run,
        chunk_size=choose_chunk_size(loaded, is_watched=progress is not None),
        progress=progress,
    )
    logits = torch.cat([first.logits[:1].expand(len(ranks), 1, -1).to(logits), logits], 1)
    ranks = ranks.cpu()  # curves keep views of it, to show inputs without their deleted units
    curves: list[MethodCurves] = []
    for name, explanation in explanations.items():
        targets = explanation.target[0].reshape(-1).tolist()
        for target, shown in zip(targets, explanation.classes(), strict=True):
            at, opposite, random = len(curves), len(scores) + len(curves), 2 * len(scores)
            values = _watch(logits, target, against, explanation.multi_label)
            by_order = {"most": ranks[at], "least": ranks[opposite]}
            curves.append(
                MethodCurves(
                    method=name,
                    target=target,
                    class_name=shown.name,
                    class_specific=explanation.class_specific,
                    most=tuple(values[at].tolist()),
                    least=tuple(values[opposite].tolist()),
                    random=tuple(values[random:].mean(0).tolist()) if draws else None,
                    _ranks=by_order | ({"random": ranks[random]} if draws else {}),
                    _units=units,
                )
            )
    return Faithfulness(tuple(curves), units.words)


def _watch(logits: Tensor, target: int, against: int | None, multi_label: bool) -> Tensor:
    """Probability of a class at each step, (orders, steps), among all classes or two."""
    if against is not None:
        logits, target, multi_label = logits[..., [target, against]], 0, False
    classes = torch.full((len(logits),), target, device=logits.device)
    return compute_curves(logits, classes, multi_label=multi_label)["probability"].cpu()
