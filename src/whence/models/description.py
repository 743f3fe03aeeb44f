"""Describe what whence sees in a model: its input, classes, attention and the methods that run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from whence.demo import PHOTO, SENTENCES
from whence.errors import NoAttentionError, WhenceError, WhenceWarning
from whence.explanation import Explanation
from whence.inputs.images import read_image
from whence.inputs.sources import Kind
from whence.methods import registry
from whence.methods.registry import Method
from whence.models.dense import DENSE_TASKS, find_dense_task
from whence.models.loaded import LoadedModel, PreparedBatch

_NO_ATTENTION = "The model has no attention that could be seen"


@dataclass(frozen=True)
class ModelDescription:
    """What is known of a model, from itself and from explanations of a sample."""

    name: str
    architecture: str  # the name of its class
    kind: Kind
    task: str  # what it does, in words
    knows: str  # what its folder says that it knows; may be empty
    parameters: int
    input: str  # the size of its input, in words
    class_count: int
    classes: dict[int, str]  # names, where they are known; empty for a vocabulary
    attention: list[list[int]]  # heads, queries and keys of each map, nearest the input first
    grid: list[int] | None  # of patches, or of equal parts where there is no attention
    units: int  # how many parts of the sample get a score
    methods: list[str]
    refused: dict[str, list[str]] = field(default_factory=dict)  # methods by the reason why not


def describe_model(
    loaded: LoadedModel, advance: Callable[[int], None] = lambda _: None
) -> ModelDescription:
    """Describe a model, by explaining a sample with as few methods as tell which others run.

    Args:
        loaded: The model.
        advance: Called with 1 for each of `list_methods`, when it is known whether it runs.

    Raises:
        WhenceError: The model cannot be run on the sample at all.
    """
    is_photo = loaded.kind == "image"
    prepared = loaded.prepare([read_image(PHOTO) if is_photo else SENTENCES[0]])
    trial = _Trial(loaded, prepared)
    refused: dict[str, list[str]] = {}
    for name in sorted(list_methods(loaded.kind), key=lambda name: -len(trial.methods[name].needs)):
        problem = trial.find_problem(name)
        if problem is not None:
            refused.setdefault(problem, []).append(name)
        advance(1)
    if not trial.runs:
        raise WhenceError(next(iter(refused)))
    not_run = {name for names in refused.values() for name in names}
    seen = next(iter(trial.runs.values()))
    return ModelDescription(
        name=loaded.title,
        architecture=type(loaded.model).__name__,
        kind=loaded.kind,
        task=_describe_task(loaded),
        knows=loaded.knows,
        parameters=sum(one.numel() for one in loaded.model.parameters()),
        input=_describe_input(loaded, prepared),
        class_count=loaded.class_count,
        classes={} if loaded.generates else dict(loaded.class_names),
        attention=_measure_attention(loaded, prepared) if trial.has_attention else [],
        grid=None if seen.grid is None else list(seen.grid),
        units=seen.scores.shape[-1],
        methods=[name for name in list_methods(loaded.kind) if name not in not_run],
        refused={problem: sorted(names) for problem, names in refused.items()},
    )


def list_methods(kind: Kind) -> list[str]:
    """List the methods that explain a kind of input."""
    return [name for name in registry.available() if kind in registry.get(name).inputs]


class _Trial:
    """Methods that were tried on a sample, and what that says of others."""

    def __init__(self, loaded: LoadedModel, prepared: PreparedBatch) -> None:
        self._loaded, self._prepared = loaded, prepared
        self._problems: dict[str, str] = {}
        self.methods = {name: registry.get(name)() for name in registry.available()}
        self.runs: dict[str, Explanation] = {}
        self.has_attention = True

    def find_problem(self, name: str) -> str | None:
        """Find the reason why a method does not run; None if it does.

        A method of many passes is not tried, but one of a few that reads the same or more.
        """
        method = self.methods[name]
        if not self.has_attention and method.scores_tokens:
            return _NO_ATTENTION
        if any(_covers(self.methods[other], method) for other in self.runs):
            return None
        probe = name if "forwards" not in method.needs else self._find_probe(method) or name
        if probe in self._problems:
            return self._problems[probe]
        try:
            self.runs[probe] = _explain(self._loaded, self._prepared, probe)
        except NoAttentionError:
            self.has_attention = False
            return _NO_ATTENTION
        except WhenceError as error:
            self._problems[probe] = str(error)
            return str(error)
        return None

    def _find_probe(self, method: Method) -> str | None:
        """The cheapest method that reads what this one reads, but for further forward passes."""
        others = sorted(self.methods, key=lambda name: len(self.methods[name].needs))
        for name in others:
            other = self.methods[name]
            if "forwards" not in other.needs and _covers(other, method):
                return name
        return None


def _covers(probe: Method, method: Method) -> bool:
    """Whether a method runs wherever the other, the probe, does."""
    needs = set(method.needs) - {"forwards"}
    return needs <= set(probe.needs) and _list_rules(method) <= _list_rules(probe)


def _list_rules(method: Method) -> set[str]:
    rules = method.gradient_rules
    return set() if rules is None else {rules.name}


def _explain(
    loaded: LoadedModel, prepared: PreparedBatch, method: str, **options: bool
) -> Explanation:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WhenceWarning)
            return loaded.explain(prepared, method=method, **options)
    except WhenceError:
        raise
    except Exception as error:  # a model of the user's may raise anything
        raise WhenceError(f"The model failed: {type(error).__name__}: {error}.") from error


def _measure_attention(loaded: LoadedModel, prepared: PreparedBatch) -> list[list[int]]:
    """Measure the maps that the decision depends on: heads, queries and keys of each."""
    try:
        seen = _explain(loaded, prepared, "raw_attention", keep_evidence=True)
    except WhenceError:  # not every model's maps can be kept
        return []
    return [] if seen.evidence is None else [list(x.shape[-3:]) for x in seen.evidence.attention]


def _describe_task(loaded: LoadedModel) -> str:
    if loaded.generates:
        return "generates text"
    if (task := find_dense_task(loaded.model)) is not None:
        return DENSE_TASKS[task]
    if loaded.kind == "image":
        return "classifies photos"
    return "classifies texts" if loaded.class_names else "predicts tokens of texts"


def _describe_input(loaded: LoadedModel, prepared: PreparedBatch) -> str:
    inputs = prepared.inputs
    if isinstance(inputs, torch.Tensor):
        return f"photos, prepared as {inputs.shape[-1]}x{inputs.shape[-2]} pixels"
    if isinstance(inputs, Mapping) and loaded.kind == "image":
        return "photos"
    longest = getattr(loaded.preprocessor, "max_length", None)
    return f"texts of at most {longest} tokens" if longest else "texts"
