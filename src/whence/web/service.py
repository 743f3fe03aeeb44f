"""Predictions and explanations by the models that the page offers, with a cache."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from whence import methods
from whence._util.files import is_folder
from whence._util.progress import name_work
from whence._util.text import format_probability
from whence.errors import WhenceError
from whence.explanation import Explanation, Photo
from whence.inputs.sources import Kind
from whence.models import LoadedModel, PreparedBatch, load, load_language_model
from whence.models.dense import DENSE_TASKS, find_dense_task
from whence.models.folder import EMBEDDED_LANGUAGE_MODEL
from whence.models.forward import compute_logits
from whence.targets import find_class_index, to_probabilities
from whence.web.lanes import Pace
from whence.web.limits import MAX_CLASSES, MAX_METHODS
from whence.web.method_cards import is_slow, list_methods
from whence.web.result_cache import ResultCache
from whence.web.validation import PageInput

# Results that are kept: those of the few people who use one page at a time.
_CACHE_SIZE = 64
# Memory for the rows of one forward pass.
_PASS_GIBIBYTES = 1 / 8
# The longer side, in pixels, of what the model saw of a photo, on the page.
SHOWN_SIDE = 768
_EMBEDDED: dict[Kind, str] = {"image": "pets (embedded)", "text": "sentiment (embedded)"}


@dataclass(frozen=True)
class ClassProbability:
    """A class and its probability."""

    index: int
    name: str  # such as "class 281" if the model names none
    probability: float | None  # None where a single logit gives none

    @property
    def percent(self) -> str:
        """The probability as a percentage; empty where there is none."""
        return format_probability(self.probability)


@dataclass(frozen=True)
class Choice:
    """The classes that are explained, and the one that they are explained against, by index."""

    classes: tuple[int, ...]
    against: int | None = None


@dataclass(frozen=True)
class Prediction:
    """The prediction of a model for one input."""

    key: tuple[str, str]  # the name of the model on the page, and the digest of the input
    loaded: LoadedModel
    prepared: PreparedBatch
    classes: list[ClassProbability]  # all of them, the most probable first

    @property
    def notes(self) -> list[str]:
        """What preprocessing changed that the visitor should know."""
        return self.prepared.notes[0]

    @property
    def photo(self) -> Photo | None:
        """The photo, and the part of it that the model saw; None for a text."""
        return self.prepared.photos[0] if self.prepared.photos else None

    def choose(self, classes: object, against: object = None, default_count: int = 1) -> Choice:
        """Find the classes that a request names by index or name.

        Args:
            classes: Those to explain; if empty, the most probable.
            against: The one to explain them against; none if empty.
            default_count: How many are explained if none are named.
        """
        other = None if against in (None, "") else self._find([against])[0]
        if not classes:
            found = [one.index for one in self.classes if one.index != other][:default_count]
        elif not isinstance(classes, list | tuple) or len(classes) > MAX_CLASSES:
            raise WhenceError(f"Choose up to {MAX_CLASSES} classes.")
        else:
            found = [one for one in self._find(classes) if one != other]
        if not found:
            raise WhenceError(
                "The class and the one to tell it from are the same: choose two different ones."
            )
        return Choice(tuple(dict.fromkeys(found)), other)

    def _find(self, chosen: Sequence[object]) -> list[int]:
        if not all(isinstance(one, int | str) for one in chosen):
            raise WhenceError("A class is chosen by its index or its name.")
        count, names = self.loaded.class_count, self.loaded.class_names
        return [find_class_index(one, names, count) for one in chosen]


@dataclass(frozen=True)
class MethodResult:
    """The explanation of all chosen classes by one method, or the reason why there is none."""

    method: str
    explanation: Explanation | None = None  # of the one input, scores (1, classes, units)
    error: str = ""


def limit_memory(loaded: LoadedModel, method: str) -> float | None:
    """The memory for a method of many passes: on a CPU so little that each takes a moment.

    Between passes, a visitor sees how far the work has come, and may cancel it.
    """
    on_a_cpu = torch.device(loaded.device).type == "cpu"
    return _PASS_GIBIBYTES if on_a_cpu and "forwards" in methods.describe(method).needs else None


def get_explanations(results: Sequence[MethodResult]) -> dict[str, Explanation]:
    """The explanations of methods that did not fail, by method; an error if all failed."""
    explanations = {r.method: r.explanation for r in results if r.explanation is not None}
    if not explanations:
        raise WhenceError(results[0].error)
    return explanations


@dataclass
class ExplanationService:
    """The models that the page offers, and a cache of what was computed with them."""

    models: dict[str, LoadedModel]  # by the name on the page; no request ever adds one
    _cache: ResultCache = field(default_factory=lambda: ResultCache(_CACHE_SIZE), repr=False)
    _pace: Pace = field(default_factory=Pace, repr=False)

    @classmethod
    def load(
        cls, names: Sequence[str] = (), weights: Path | None = None, device: str | None = None
    ) -> ExplanationService:
        """Load models by name, and the embedded one of each kind that none of them explains."""
        if weights is not None and len(names) != 1:
            raise WhenceError("A weights file goes with exactly one --model.")
        models: dict[str, LoadedModel] = {}
        for name in names:
            loaded = load(name, None, weights, device)
            loaded.check_is_photo_or_text("The page")
            _check_task(loaded)
            loaded.name = _choose_name(name, models)
            models[loaded.name] = loaded
        kinds = {loaded.kind for loaded in models.values() if not loaded.generates}
        for kind, name in _EMBEDDED.items():
            if kind not in kinds:
                models[name] = load(None, kind, None, device)
        has_none = not any(loaded.generates for loaded in models.values())
        if has_none and EMBEDDED_LANGUAGE_MODEL.is_dir():
            models["stories (embedded)"] = load_language_model(None, device)
        return cls(models)

    def list_models(self, kind: Kind) -> list[str]:
        """The names of models that classify this kind of input."""
        classifiers = {name: one for name, one in self.models.items() if not one.generates}
        return [name for name, loaded in classifiers.items() if loaded.kind == kind]

    def predict(self, model: object, page_input: PageInput) -> Prediction:
        """Predict the classes of an input; an error if the page offers no such model for it."""
        if not isinstance(model, str) or model not in self.models:
            raise WhenceError("This page does not offer that model.")
        loaded = self.models[model]
        if loaded.generates:
            raise WhenceError(f"The model '{model}' generates text: use it on its own tab.")
        if loaded.kind != page_input.kind:
            kinds = f"{loaded.kind}s, not {page_input.kind}s"
            raise WhenceError(f"The model '{model}' explains {kinds}.")
        key = model, page_input.digest
        return self._cache.get_or_compute(key, lambda: _predict(key, loaded, page_input))

    def explain(self, prediction: Prediction, choice: Choice, names: object) -> list[MethodResult]:
        """Explain classes by chosen methods. The error of a method is part of its result."""
        chosen = _check_methods(prediction.loaded.kind, names)
        return [self._explain_by(name, prediction, choice) for name in chosen]

    def _explain_by(self, method: str, prediction: Prediction, choice: Choice) -> MethodResult:
        def compute() -> Explanation:
            loaded = prediction.loaded
            with self._pace.measure((loaded.name, method), is_slow(method)), name_work(method):
                return loaded.explain(
                    prediction.prepared,
                    method=method,
                    classes=list(choice.classes),
                    against=choice.against,
                    memory=limit_memory(loaded, method),
                )

        try:
            key = *prediction.key, choice, method
            return MethodResult(method, self._cache.get_or_compute(key, compute))
        except WhenceError as error:
            return MethodResult(method, error=str(error))


def _check_task(loaded: LoadedModel) -> None:
    """Refuse models that the page has no tab for, which speak of each token, box or place."""
    if (task := find_dense_task(loaded.model)) is not None:
        raise WhenceError(
            f"'{loaded.name}' {DENSE_TASKS[task]}, and the page shows classes of whole photos: use "
            f"`whence explain`."
        )
    if loaded.kind != "text" or loaded.generates:
        return
    if compute_logits(loaded, loaded.prepare(["a"]).inputs).dim() != 2:
        raise WhenceError(
            f"'{loaded.name}' has an output for each token of a text, which the page does not "
            f"show: use `whence explain --position`."
        )


def _choose_name(name: str, others: Collection[str]) -> str:
    """The name of a model on the page: for a folder, without the path, which is private."""
    shown = Path(name).resolve().name if is_folder(Path(name)) else name
    if shown in others:
        raise WhenceError(f"Two models are called '{shown}'; rename the folder of one.")
    return shown


def _predict(key: tuple[str, str], loaded: LoadedModel, page_input: PageInput) -> Prediction:
    prepared = loaded.prepare([page_input.image or page_input.text])
    if prepared.photos:
        prepared.photos = [photo.shrink(SHOWN_SIDE) for photo in prepared.photos]
    logits = compute_logits(loaded, prepared.inputs)[0].double().cpu()
    return Prediction(key, loaded, prepared, _rank_classes(loaded, logits))


def _rank_classes(loaded: LoadedModel, logits: torch.Tensor) -> list[ClassProbability]:
    config = getattr(loaded.model, "config", None)
    multi_label = getattr(config, "problem_type", None) == "multi_label_classification"
    values = to_probabilities(logits, multi_label).tolist()
    # A single logit that is no label is a quantity, not a probability.
    probabilities = values if multi_label or len(values) > 1 else [None]
    order = logits.argsort(descending=True, stable=True).tolist()
    names = loaded.class_names
    return [ClassProbability(i, names.get(i, f"class {i}"), probabilities[i]) for i in order]


def _check_methods(kind: Kind, names: object) -> list[str]:
    """Check chosen methods, and drop those that are named twice."""
    if not isinstance(names, list | tuple) or not 1 <= len(names) <= MAX_METHODS:
        raise WhenceError(f"Choose between one and {MAX_METHODS} methods.")
    for name in names:
        methods.get(name)
        if name not in list_methods(kind):
            raise WhenceError(f"Method '{name}' does not explain {kind}s.")
    return list(dict.fromkeys(names))
