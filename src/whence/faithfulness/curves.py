"""Is it faithful? What becomes of a class as what was found relevant is taken out of one input.

The steps are those of Chefer, Gur, Wolf (CVPR 2021): 10, 20, … 90 % of the units are removed, the
most relevant first, the least relevant first, or at random. Pixels of a photo become black, as
`whence.metrics.perturbation` does it; words of a text are taken out, and what is left is tokenised
again.

    >>> found = compare("cat.jpg", ["tiba", "gae"], classes=2)  # doctest: +SKIP
    >>> found.best()[0].method  # doctest: +SKIP
    >>> found.of("gae").masked(3)  # doctest: +SKIP
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import torch
from PIL import Image
from torch import Tensor

from whence._util.random import Chance
from whence.api import read
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.metrics import perturbation
from whence.metrics.perturbation import FRACTIONS, count, ranks, to_pixels
from whence.models import LoadedModel, Prepared, load
from whence.models.forward import in_parts, logits_of, rows_at_once
from whence.models.loaded import word_spans
from whence.models.scale import Scale

Order = Literal["most", "least", "random"]
Progress = Callable[[int, int], None]

STEPS = (0.0, *FRACTIONS)
"""Which share of the units is removed at each step; nothing at the first."""

DRAWS = 5
"""How many random orders the random curve is the mean of, if not told."""


@dataclass(frozen=True)
class Curves:
    """What becomes of one class when the units that one method scored are removed.

    Attributes:
        method: What the method was called.
        target: Index of the class.
        class_name: Its name, or "class 281".
        class_specific: Whether the method could have scored units otherwise for another class.
        most: Probability of the class at each of `STEPS`, the most relevant units removed first.
        least: The same, the least relevant first.
        random: The same at random, the mean of several draws; None if none were asked for. It is
            the same for all methods.
    """

    method: str
    target: int
    class_name: str
    class_specific: bool
    most: tuple[float, ...]
    least: tuple[float, ...]
    random: tuple[float, ...] | None
    _turns: Mapping[str, Tensor] = field(repr=False, compare=False)
    _given: _Given = field(repr=False, compare=False)

    @property
    def steps(self) -> tuple[float, ...]:
        """Which share of the units is removed at each step."""
        return STEPS

    def curve(self, order: Order) -> tuple[float, ...]:
        """The probabilities for an order of removal.

        Raises:
            WhenceError: There is no such order, or nothing was drawn at random.
        """
        if order not in get_args(Order):
            raise WhenceError(f"The order is one of {get_args(Order)}, not {order!r}.")
        found: tuple[float, ...] | None = getattr(self, order)
        if found is None:
            raise WhenceError("No random orders were drawn; ask for some with draws=5.")
        return found

    def auc(self, order: Order) -> float:
        """Area under a curve, times 100, from nothing to 90 % removed: at most 90."""
        values = torch.tensor(self.curve(order), dtype=torch.float64)
        return float(perturbation.area(values, STEPS))

    @property
    def score(self) -> float:
        """Faithfulness: the area of least-first minus that of most-first, from -90 to 90.

        If scores are faithful, the probability falls at once when the highest are removed, and
        stays when the lowest are: the area between the curves is large. Scores that know nothing
        of the model get about 0, scores that are the wrong way round less. It says how well scores
        order the units for this model, this input and this way of removing; not whether the model
        is right, nor whether people would agree. A class that hardly loses anything, or that has
        little to lose, gets a small score from every method: compare methods on one input, not
        inputs.
        """
        return self.auc("least") - self.auc("most")

    def removed(self, step: int, order: Order = "most") -> Tensor:
        """What is removed at a step, counted from 0: (height, width) of pixels, or (words,).

        Of the random orders, the first is shown.

        Raises:
            WhenceError: There is no such step or order.
        """
        self.curve(order)
        if not 0 <= step < len(STEPS):
            raise WhenceError(f"The steps are 0 to {len(STEPS) - 1}; there is no step {step}.")
        turns = self._turns[order]
        return self._given.shaped(turns < count(len(turns), STEPS[step]))

    def masked(self, step: int, order: Order = "most") -> Image.Image | str:
        """What the model was given at a step: a photo of the size that it sees, or a text.

        Raises:
            WhenceError: There is no such step or order.
        """
        return self._given.masked(self.removed(step, order).flatten())


@dataclass(frozen=True)
class Faithfulness:
    """The curves of one input, for every method and class.

    Attributes:
        curves: Methods in the order they were given in, and for each its classes.
        words: The words that are removed; None for a photo.
    """

    curves: tuple[Curves, ...]
    words: tuple[str, ...] | None = None

    @property
    def targets(self) -> tuple[int, ...]:
        """The classes, as indices, in the order they were asked for."""
        return tuple(dict.fromkeys(one.target for one in self.curves))

    def of(self, method: str, target: int | None = None) -> Curves:
        """The curves of a method and a class; of the first class if none is named.

        Raises:
            WhenceError: They were not measured.
        """
        wanted = self.targets[0] if target is None else target
        for one in self.curves:
            if (one.method, one.target) == (method, wanted):
                return one
        raise WhenceError(f"'{method}' was not measured for class {wanted}.")

    def ranked(self, target: int | None = None) -> list[Curves]:
        """The methods for a class (the first, if none is named), the most faithful first."""
        wanted = self.targets[0] if target is None else target
        of_class = [one for one in self.curves if one.target == wanted]
        return sorted(of_class, key=lambda one: -one.score)

    def best(self, target: int | None = None) -> list[Curves]:
        """Which method wins on this input for a class: more than one if they tie."""
        ranked = self.ranked(target)
        return [one for one in ranked if one.score > ranked[0].score - 1e-9]


def compare(
    what: Any,
    methods: Sequence[str],
    model: str | Path | LoadedModel | None = None,
    *,
    target: Any = None,
    classes: Any = None,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Progress = lambda _done, _all: None,
) -> Faithfulness:
    """Explain one photo or text by several methods, and measure how faithful each is.

    Args:
        what: A photo or a text, as `whence.explain` takes them.
        methods: Any of ``methods.available()``.
        model: As `whence.explain` takes it.
        target: The class to explain; the predicted one if left out.
        classes: Instead of target, several classes, or a number k for the top k.
        draws: As for `measure`.
        seed: As for `measure`.
        progress: As for `measure`.

    Raises:
        WhenceError: Something is wrong with the input, the model or the request.
    """
    content = read(what)
    if not isinstance(model, LoadedModel):
        model = load(model, "text" if isinstance(content, str) else "image")
    prepared = model.prepare([content])
    explanations = {
        name: model.explain(prepared, method=name, target=target, classes=classes)
        for name in methods
    }
    return measure(model, prepared, explanations, draws=draws, seed=seed, progress=progress)


def measure(
    loaded: LoadedModel,
    prepared: Prepared,
    explanations: Mapping[str, Explanation],
    *,
    draws: int = DRAWS,
    seed: int = 0,
    progress: Progress = lambda _done, _all: None,
) -> Faithfulness:
    """Remove parts of one input in the orders that explanations give, and run the model on them.

    Maps that are equal, and random orders, which know no class, are run once for all; what is run
    goes through the model in batches that fit into memory.

    Args:
        loaded: The model.
        prepared: The input, a batch of one, as ``loaded.prepare([photo])`` gives it.
        explanations: Of that input, each of one class or several, by what to call their methods.
        draws: How many random orders are averaged; 0 to leave them out.
        seed: Where random numbers start.
        progress: Is told how many forward passes are done, and of how many.

    Raises:
        WhenceError: There is nothing to remove, or no probability to watch.
    """
    _check(loaded, prepared, explanations, draws)
    given: _Given = (_Photo if loaded.kind == "image" else _Text)(loaded, prepared)
    asked = [(name, one, at) for name, one in explanations.items() for at in range(_classes(one))]
    scores = torch.cat([given.scores(one) for one in explanations.values()])
    maps, of_map = torch.unique(scores, dim=0, return_inverse=True)
    drawn = given.drawn(draws, seed, next(iter(explanations.values())).grid).to(maps)
    orders = (ranks(maps, "highest"), ranks(maps, "lowest"), ranks(drawn, "highest"))
    turns = torch.cat(orders).int()
    logits = _run(loaded, given, turns, progress)
    turns = turns.cpu()  # curves keep views of it, to show masked inputs
    clean = next(iter(explanations.values())).logits[:1]
    logits = torch.cat([clean.expand(len(turns), 1, -1).to(logits), logits], 1)
    found = []
    for (name, explanation, at), which in zip(asked, of_map.tolist(), strict=True):
        target = int(explanation.target[0].reshape(-1)[at])
        chances = _chances(logits, target, explanation.multi_label)
        shown = {"most": turns[which], "least": turns[len(maps) + which]}
        if draws:
            shown["random"] = turns[2 * len(maps)]
        found.append(
            Curves(
                method=name,
                target=target,
                class_name=explanation.classes()[at].name,
                class_specific=explanation.class_specific,
                most=_numbers(chances[which]),
                least=_numbers(chances[len(maps) + which]),
                random=_numbers(chances[2 * len(maps) :].mean(0)) if draws else None,
                _turns=shown,
                _given=given,
            )
        )
    return Faithfulness(tuple(found), given.words)


def _check(
    loaded: LoadedModel, prepared: Prepared, explanations: Mapping[str, Explanation], draws: int
) -> None:
    if not explanations:
        raise WhenceError("Name at least one method whose faithfulness is measured.")
    if draws < 0:
        raise WhenceError(f"The number of random draws is 0 or more, not {draws}.")
    one = len(prepared.shown) == 1 and all(len(e.scores) == 1 for e in explanations.values())
    if not one:
        raise WhenceError("Faithfulness is measured on one input at a time, not on a batch.")
    if any(e.logits.shape[-1] == 1 and not e.multi_label for e in explanations.values()):
        raise WhenceError(
            f"The model '{loaded.name}' answers with a single number, not with probabilities of "
            f"classes that could be watched."
        )


def _classes(explanation: Explanation) -> int:
    return 1 if explanation.scores.dim() == 2 else explanation.scores.shape[1]


def _run(loaded: LoadedModel, given: _Given, turns: Tensor, progress: Progress) -> Tensor:
    """Logits when units are removed by turns, (orders, fractions, classes)."""
    units = turns.shape[1]
    removals = torch.tensor([count(units, f) for f in FRACTIONS], device=turns.device)
    total = len(turns) * len(FRACTIONS)

    def work(part: range) -> Tensor:
        # Rows run over orders within fractions: texts that have lost alike are of like length.
        rows = torch.arange(part.start, part.stop, device=turns.device)
        step, order = rows // len(turns), rows % len(turns)
        logits = logits_of(loaded, given.without(turns[order] < removals[step][:, None]))
        progress(part.stop, total)
        return logits

    found = in_parts(total, rows_at_once(loaded), work, loaded.device)
    return found.reshape(len(FRACTIONS), len(turns), -1).transpose(0, 1)


def _chances(logits: Tensor, target: int, multi_label: bool) -> Tensor:
    """Probabilities of a class, (orders, steps)."""
    logits = logits.double()
    return (logits.sigmoid() if multi_label else logits.softmax(-1))[..., target]


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(values.cpu().tolist())


class _Given(Protocol):
    """An input of which units can be removed."""

    words: tuple[str, ...] | None

    def scores(self, explanation: Explanation) -> Tensor:
        """Scores of the units that are removed, (classes, units)."""

    def drawn(self, draws: int, seed: int, grid: tuple[int, int] | None) -> Tensor:
        """Random scores, (draws, units)."""

    def shaped(self, removed: Tensor) -> Tensor:
        """Units as they lie on the input."""

    def without(self, removed: Tensor) -> Any:
        """What the model takes if units (rows, units) are removed."""

    def masked(self, removed: Tensor) -> Image.Image | str:
        """The input to show if units (units,) are removed."""


class _Photo:
    """A photo whose pixels become black, in the order of the upsampled map."""

    words: tuple[str, ...] | None = None

    def __init__(self, loaded: LoadedModel, prepared: Prepared) -> None:
        assert isinstance(prepared.inputs, Tensor)
        self.pixels = prepared.inputs
        self.scale = Scale.of(loaded)
        self.size = (int(self.pixels.shape[-2]), int(self.pixels.shape[-1]))

    def scores(self, explanation: Explanation) -> Tensor:
        return explanation.heatmap(self.size).reshape(-1, self.size[0] * self.size[1])

    def drawn(self, draws: int, seed: int, grid: tuple[int, int] | None) -> Tensor:
        # Drawn for patches and upsampled as maps are: single black pixels would be another test.
        assert grid is not None
        return to_pixels(Chance(seed).uniform(draws, *grid), self.size).flatten(1)

    def shaped(self, removed: Tensor) -> Tensor:
        return removed.reshape(self.size)

    def without(self, removed: Tensor) -> Tensor:
        hidden = removed.reshape(-1, *self.size)
        return self.scale.hide(self.pixels.expand(len(hidden), -1, -1, -1), hidden, "zero")

    def masked(self, removed: Tensor) -> Image.Image:
        pixels = self.without(removed[None].to(self.pixels.device))[0]
        values = (self.scale.to_unit(pixels) * 255).round().to(torch.uint8)
        return Image.fromarray(values.permute(1, 2, 0).cpu().numpy())


class _Text:
    """A text whose words are taken out; what the model did not read takes no part."""

    def __init__(self, loaded: LoadedModel, prepared: Prepared) -> None:
        encodings = getattr(prepared.inputs, "encodings", None)
        if not encodings:
            raise WhenceError(
                f"The tokenizer of '{loaded.name}' does not tell where words stand in a text; a "
                f"fast tokenizer is needed."
            )
        self.loaded = loaded
        self.numbers = encodings[0].word_ids
        spans = word_spans(encodings[0])
        self.order, self.spans = list(spans), list(spans.values())
        if len(spans) < 2:
            raise WhenceError("A text of a single word leaves nothing when it is removed.")
        self.text: str = prepared.shown[0][: max(end for _, end in self.spans)]
        self.words: tuple[str, ...] | None = tuple(self.text[a:b].strip() for a, b in self.spans)

    def scores(self, explanation: Explanation) -> Tensor:
        tokens = explanation.scores.reshape(-1, explanation.scores.shape[-1]).double()
        if tokens.shape[1] != len(self.numbers):
            raise WhenceError(
                f"The explanation has scores of {tokens.shape[1]} tokens, and the text has "
                f"{len(self.numbers)}: they do not belong together."
            )
        words = [[number == word for number in self.numbers] for word in self.order]
        return tokens @ torch.tensor(words, dtype=tokens.dtype, device=tokens.device).T

    def drawn(self, draws: int, seed: int, grid: tuple[int, int] | None) -> Tensor:  # noqa: ARG002
        return Chance(seed).uniform(draws, len(self.spans))

    def shaped(self, removed: Tensor) -> Tensor:
        return removed

    def without(self, removed: Tensor) -> Any:
        texts = [self.masked(row) for row in removed]
        longest = len(self.numbers)  # as the whole text was cut
        batch = self.loaded.tokenizer(
            texts, truncation=True, max_length=longest, padding=True, return_tensors="pt"
        )
        return batch.to(self.loaded.device)

    def masked(self, removed: Tensor) -> str:
        if not removed.any():
            return self.text
        letters = list(self.text)
        for (start, end), gone in zip(self.spans, removed.tolist(), strict=True):
            if gone:
                letters[start:end] = "\0" * (end - start)
        # One space is left, so that neighbours do not join to a new word.
        return re.sub(r"\s*\0[\s\0]*", " ", "".join(letters)).strip()
