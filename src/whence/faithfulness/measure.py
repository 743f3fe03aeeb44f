"""Measure faithfulness: delete parts of one input in the order of scores, and watch a class.

The steps are those of Chefer, Gur, Wolf (CVPR 2021): 10, 20, … 90 % of the units are deleted, the
most relevant first, the least relevant first, or at random. Pixels of a photo become black; words
of a text are deleted, and the rest is tokenised again.

    >>> result = whence.compare("cat.jpg", ["tiba", "gae"], faithfulness=True)  # doctest: +SKIP
    >>> result.faithfulness.find_best()[0].method  # doctest: +SKIP
    >>> result.faithfulness.get("gae").get_input(3)  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.faithfulness.orders import find_orders
from whence.faithfulness.photos import PhotoRunner, PhotoUnits
from whence.faithfulness.precision import choose_precision
from whence.faithfulness.result import Faithfulness
from whence.faithfulness.sparse import delete_sparsely
from whence.faithfulness.texts import TextUnits
from whence.metrics.deletion import FRACTIONS, Progress, count_units, delete_in_order
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
    if draws < 0:
        raise WhenceError(f"The number of random draws is 0 or more, not {draws}.")
    _check_can_be_measured(loaded, prepared, explanations)
    units = (PhotoUnits if loaded.kind == "image" else TextUnits)(loaded, prepared)
    orders = find_orders(units, explanations, against, draws, seed)
    logits = delete_in_order(
        orders.ranks,
        count_units(orders.ranks.shape[1], FRACTIONS),
        units.run,
        chunk_size=choose_chunk_size(loaded, is_watched=progress is not None),
        progress=progress,
    )
    return orders.collect(logits)


def measure_photos(
    loaded: LoadedModel,
    photos: Sequence[tuple[PreparedBatch, Mapping[str, Explanation]]],
    *,
    against: int | None = None,
    chunk_size: int | None = None,
) -> list[Faithfulness]:
    """Measure photos as `measure` does, in full batches and without steps that hardly matter.

    The two steps between 0 and 30 %, 30 and 60 %, or 60 and 90 % are left out where the class's
    probability is below 0.5 % at both ends, or above 99.5 % at both; there, the curve is a straight
    line. A model that was loaded with the precision bfloat16 runs in it. Where the processor is
    quick at float16, others run in that, if whole photos keep their probabilities. docs/report.md
    tells how far scores are from those with all steps in full precision.

    Args:
        loaded: The model.
        photos: Each with its explanations, as `measure` takes them; no random orders are drawn.
        against: As for `measure`.
        chunk_size: How many rows go through the model at once; chosen by device and precision if
            left out.

    Raises:
        WhenceError: One of the photos cannot be measured.
    """
    if not photos:
        return []
    for prepared, explanations in photos:
        _check_can_be_measured(loaded, prepared, explanations)
    units = [PhotoUnits(loaded, prepared) for prepared, _ in photos]
    if len({one.run.size for one in units}) > 1:
        alone = [
            measure_photos(loaded, [one], against=against, chunk_size=chunk_size) for one in photos
        ]
        return [one for (one,) in alone]
    of_photos = [
        find_orders(one, explanations, against)
        for one, (_, explanations) in zip(units, photos, strict=True)
    ]
    counts = torch.tensor([len(one.ranks) for one in of_photos])

    def watch(logits: Tensor) -> Tensor:
        parts = torch.split(logits, counts.tolist())
        return torch.cat([one.watch(part) for one, part in zip(of_photos, parts, strict=True)])

    inputs = torch.arange(len(photos)).repeat_interleave(counts)
    clean = torch.cat([one.clean for one in of_photos])

    def measure_shift(photo: int, logits: Tensor) -> float:
        orders = of_photos[photo]
        both = torch.stack([orders.clean, logits.to(orders.clean)], 1)
        odds = orders.watch(both.expand(len(orders.ranks), -1, -1)).double().logit()
        return float((odds[:, 1] - odds[:, 0]).abs().max())

    runner = PhotoRunner(loaded, torch.cat([one.run.pixels for one in units]))
    run, rows = choose_precision(runner, measure_shift, chunk_size)
    logits = delete_sparsely(
        torch.cat([one.ranks for one in of_photos]),
        lambda deleted, photos: run(deleted, photos).to(clean.dtype),
        inputs,
        clean[inputs],
        watch,
        rows,
    )
    parts = torch.split(logits, counts.tolist())
    return [one.collect(part) for one, part in zip(of_photos, parts, strict=True)]


def _check_can_be_measured(
    loaded: LoadedModel, prepared: PreparedBatch, explanations: Mapping[str, Explanation]
) -> None:
    if not explanations:
        raise WhenceError("Name at least one method whose faithfulness is measured.")
    if len(prepared) != 1 or any(len(one.scores) != 1 for one in explanations.values()):
        raise WhenceError("Faithfulness is measured on one input at a time, not on a batch.")
    if any(e.logits.shape[-1] == 1 and not e.multi_label for e in explanations.values()):
        raise WhenceError(
            f"The model '{loaded.name}' answers with a single number, not with probabilities of "
            f"classes that could be watched."
        )
