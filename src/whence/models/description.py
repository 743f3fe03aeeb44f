"""Describe what whence sees in a model: its input, classes, attention and the methods that run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch

from whence.demo import PHOTO, SENTENCES
from whence.errors import WhenceError
from whence.inputs.images import read_image
from whence.inputs.sources import Kind
from whence.methods import registry
from whence.models.dense import DENSE_TASKS, find_dense_task
from whence.models.loaded import LoadedModel, PreparedBatch
from whence.models.trial import MethodTrial


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
    trial = MethodTrial(partial(loaded.explain, prepared))
    methods, refused = trial.try_all(list_methods(loaded.kind), advance)
    if not trial.runs:
        raise WhenceError(next(iter(refused)))
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
        attention=trial.measure_attention(),
        grid=None if seen.grid is None else list(seen.grid),
        units=seen.scores.shape[-1],
        methods=methods,
        refused=refused,
    )


def list_methods(kind: Kind) -> list[str]:
    """List the methods that explain a kind of input."""
    return [name for name in registry.available() if kind in registry.get(name).inputs]


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
