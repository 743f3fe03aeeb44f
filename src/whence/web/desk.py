"""Where the work is done: models, what they say of an input, and explanations of it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image

from whence import methods
from whence._util.files import is_folder
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.faithfulness import Faithfulness, Progress, measure
from whence.inputs.sources import Kind
from whence.models import LoadedModel, Prepared, load
from whence.models.forward import logits_of
from whence.targets import resolve_classes
from whence.web.heads import Heads, read_heads
from whence.web.inputs import Input, Photo
from whence.web.limits import CLASSES, METHODS

# Results that are remembered: those of the few people who use one page at a time.
_REMEMBERED = 64
# The longer side of photos as they are shown.
SHOWN_SIDE = 512
_EMBEDDED = {"image": "pets (embedded)", "text": "sentiment (embedded)"}

T = TypeVar("T")


@dataclass(frozen=True)
class Chance:
    """A class and how probable the model finds it.

    Attributes:
        index: Its number.
        name: Its name, or "class 281".
        probability: None where a single logit gives none.
    """

    index: int
    name: str
    probability: float | None


@dataclass(frozen=True)
class Seen:
    """What a model made of an input, before any explanation.

    Attributes:
        prepared: The input as the model takes it.
        chances: All classes, the most probable first.
        notes: What was done to the input that its owner should know.
    """

    prepared: Prepared
    chances: list[Chance]
    notes: list[str]


@dataclass(frozen=True)
class Answer:
    """What a method said: an explanation of all chosen classes, or why there is none.

    Attributes:
        method: Its name.
        explanation: Of the one input, scores (1, classes, units).
        error: A sentence.
    """

    method: str
    explanation: Explanation | None = None
    error: str = ""


def methods_for(kind: Kind) -> list[str]:
    """The methods that explain this kind of input."""
    return [name for name in methods.available() if kind in methods.describe(name).inputs]


@dataclass
class Desk:
    """The models that are offered, and what was computed with them lately.

    Attributes:
        models: By the name under which they are offered. No request ever adds one.
    """

    models: dict[str, LoadedModel]
    _memory: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def with_models(
        cls, names: Sequence[str] = (), weights: Any = None, device: str | None = None
    ) -> Desk:
        """Load models by name, and the embedded one of each kind that none of them explains.

        Raises:
            WhenceError: A model cannot be loaded.
        """
        if weights is not None and len(names) != 1:
            raise WhenceError("A weights file goes with exactly one --model.")
        models: dict[str, LoadedModel] = {}
        for name in names:
            loaded = load(name, None, weights, device)
            loaded.name = _offered_as(name, models)
            models[loaded.name] = loaded
        kinds = {loaded.kind for loaded in models.values()}
        for kind, name in _EMBEDDED.items():
            if kind not in kinds:
                models[name] = load(None, kind, None, device)  # type: ignore[arg-type]
        return cls(models)

    def names(self, kind: Kind) -> list[str]:
        """The models for this kind of input."""
        return [name for name, loaded in self.models.items() if loaded.kind == kind]

    def model(self, name: str, what: Input) -> LoadedModel:
        """A model by name.

        Raises:
            WhenceError: It is not offered, or is not for such an input.
        """
        kind = "image" if isinstance(what, Photo) else "text"
        loaded = self.models.get(name) if isinstance(name, str) else None
        if loaded is None:
            raise WhenceError("This page does not offer that model.")
        if loaded.kind != kind:
            raise WhenceError(f"The model '{name}' explains {loaded.kind}s, not {kind}s.")
        return loaded

    def look(self, model: str, what: Input) -> Seen:
        """Let a model look at an input.

        Raises:
            WhenceError: The model is not offered, or cannot read the input.
        """
        loaded = self.model(model, what)
        return self.remembered(("seen", model, what.digest), lambda: _seen(loaded, what))

    def classes(
        self, model: str, what: Input, chosen: Sequence[Any], otherwise: int = 1
    ) -> list[int]:
        """Chosen classes as indices; if none are, some of the most probable.

        Raises:
            WhenceError: A model or a class is not there, or too many were chosen.
        """
        loaded = self.model(model, what)
        if not chosen:
            return [one.index for one in self.look(model, what).chances[:otherwise]]
        if not isinstance(chosen, list | tuple) or len(chosen) > CLASSES:
            raise WhenceError(f"Choose up to {CLASSES} classes.")
        if not all(isinstance(one, int | str) for one in chosen):
            raise WhenceError("A class is chosen by its index or its name.")
        nothing = torch.zeros(1, loaded.class_count)
        indices = resolve_classes(nothing, loaded.class_names, classes=list(chosen))[0].tolist()
        return list(dict.fromkeys(indices))

    def explain(
        self, model: str, what: Input, classes: Sequence[Any], names: Sequence[str]
    ) -> list[Answer]:
        """Explain chosen classes by chosen methods; a method that fails says so for itself.

        Raises:
            WhenceError: A model, a class or a method is not there, or too many were chosen.
        """
        indices = self.classes(model, what, classes)
        chosen = _checked_methods(self.model(model, what), names)
        return [self._answer(model, what, indices, name) for name in chosen]

    def _answer(self, model: str, what: Input, classes: list[int], method: str) -> Answer:
        def work() -> Explanation:
            prepared = self.look(model, what).prepared
            return self.models[model].explain(prepared, classes=classes, method=method)

        key = ("explanation", model, what.digest, tuple(classes), method)
        try:
            return Answer(method, self.remembered(key, work))
        except WhenceError as error:
            return Answer(method, error=str(error))

    def faithful(
        self,
        model: str,
        what: Input,
        classes: Sequence[Any],
        names: Sequence[str],
        progress: Progress = lambda _done, _all: None,
    ) -> Faithfulness:
        """Measure how faithful chosen methods are on this input; those that fail are left out.

        Raises:
            WhenceError: As for `explain`, or no method explains this input.
        """
        answers = self.explain(model, what, classes, names)
        found = {a.method: a.explanation for a in answers if a.explanation is not None}
        if not found:
            raise WhenceError(answers[0].error)
        prepared = self.look(model, what).prepared
        # Not remembered: the order of all pixels, for each method and class, is large.
        return measure(self.models[model], prepared, found, progress=progress)

    def heads(self, model: str, what: Input, token: int) -> Heads:
        """What a token attends to, in every head and layer.

        Raises:
            WhenceError: The model or the token is not there.
        """
        return read_heads(self.model(model, what), self.look(model, what).prepared, token)

    def remembered(self, key: Hashable, work: Callable[[], T]) -> T:
        """The result of some work, which is not done again while it is remembered."""
        with self._lock:
            if key in self._memory:
                self._memory.move_to_end(key)
                return self._memory[key]  # type: ignore[no-any-return]
        found = work()
        with self._lock:
            self._memory[key] = found
            while len(self._memory) > _REMEMBERED:
                self._memory.popitem(last=False)
        return found


def _offered_as(name: str, others: Collection[str]) -> str:
    """What a page calls a model: of a folder, only its own name, as its place is nobody's business.

    Raises:
        WhenceError: Another one is called the same.
    """
    shown = Path(name).resolve().name if is_folder(Path(name)) else name
    if shown in others:
        raise WhenceError(f"Two models are called '{shown}'; rename the folder of one.")
    return shown


def _seen(loaded: LoadedModel, what: Input) -> Seen:
    prepared = loaded.prepare([what.image if isinstance(what, Photo) else what.text])
    logits = logits_of(loaded, prepared.inputs)[0].double().cpu()
    prepared.shown = [_small(one) for one in prepared.shown]
    return Seen(prepared, _chances(loaded, logits), prepared.notes[0])


def _small(shown: Any) -> Any:
    """What is remembered of a photo to be shown: no more than a page shows."""
    if not isinstance(shown, Image.Image):
        return shown
    shown = shown.copy()
    shown.thumbnail((SHOWN_SIDE, SHOWN_SIDE))
    return shown


def _chances(loaded: LoadedModel, logits: torch.Tensor) -> list[Chance]:
    config = getattr(loaded.model, "config", None)
    if getattr(config, "problem_type", None) == "multi_label_classification":
        probabilities: list[float | None] = list(logits.sigmoid().tolist())
    elif len(logits) > 1:
        probabilities = list(logits.softmax(0).tolist())
    else:
        probabilities = [None]
    order = logits.argsort(descending=True, stable=True).tolist()
    names = loaded.class_names
    return [Chance(i, names.get(i, f"class {i}"), probabilities[i]) for i in order]


def _checked_methods(loaded: LoadedModel, names: Sequence[str]) -> list[str]:
    if not isinstance(names, list | tuple) or not 1 <= len(names) <= METHODS:
        raise WhenceError(f"Choose between one and {METHODS} methods.")
    for name in names:
        methods.get(name)
        if name not in methods_for(loaded.kind):
            raise WhenceError(f"Method '{name}' does not explain {loaded.kind}s.")
    return list(dict.fromkeys(names))
