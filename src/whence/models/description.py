"""Describe what whence sees in a model: its input, classes, attention and the methods that run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from whence.demo import PHOTO, SENTENCES
from whence.engine.naflex_images import NaflexPacker
from whence.errors import WhenceError
from whence.inputs.images import read_image
from whence.inputs.sounds import sound_from_array
from whence.inputs.sources import Content, Kind
from whence.inputs.videos import video_from_array
from whence.methods import registry
from whence.models.dense import DENSE_TASKS, find_dense_task
from whence.models.loaded import LoadedModel, PreparedBatch
from whence.models.pairs import PairModel
from whence.models.sentences import SentenceEncoder
from whence.models.trial import MethodTrial

_RATE = 16_000
_PLURALS = {"image": "photos", "video": "videos", "audio": "sounds"}
# What a model that compares inputs with texts is tried with.
_TEXTS = ("a photo of a cat", "a photo of a dog")


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
    """Describe a model, by explaining a sample with all methods but those of many passes.

    Args:
        loaded: The model.
        advance: Called with 1 for each of `list_methods`, when it is known whether it runs.

    Raises:
        WhenceError: The model cannot be run on the sample at all.
    """
    is_pair = isinstance(loaded, PairModel)
    if isinstance(loaded, PairModel):
        loaded = loaded.with_texts(_TEXTS, scores_words=False)
    prepared = loaded.prepare([_make_sample(loaded.kind)])
    trial = MethodTrial(partial(loaded.explain, prepared))
    methods, refused = trial.try_all(list_methods(loaded.kind), advance)
    if not trial.runs:
        raise WhenceError(next(iter(refused)))
    seen = next(iter(trial.runs.values()))
    return ModelDescription(
        name=loaded.title,
        architecture=_name_architecture(loaded),
        kind=loaded.kind,
        task=_describe_task(loaded),
        knows=loaded.knows,
        parameters=sum(one.numel() for one in loaded.model.parameters()),
        input=_describe_input(loaded, prepared),
        class_count=0 if is_pair else loaded.class_count,
        classes={} if loaded.generates or is_pair else dict(loaded.class_names),
        attention=trial.measure_attention(),
        grid=None if seen.grid is None else list(seen.grid),
        units=seen.scores.shape[-1],
        methods=methods,
        refused=refused,
    )


def list_methods(kind: Kind) -> list[str]:
    """List the methods that explain a kind of input; those of photos take videos and sounds."""
    return registry.available("text" if kind == "text" else "image")


def _make_sample(kind: Kind) -> Content:
    """An input of a kind: the photo and the sentence that whence carries, or noise."""
    noise = np.random.default_rng(0)
    if kind == "video":
        return video_from_array(noise.integers(0, 256, (16, 224, 224, 3), dtype=np.uint8))
    if kind == "audio":
        return sound_from_array(0.1 * noise.standard_normal(_RATE))
    return read_image(PHOTO) if kind == "image" else SENTENCES[0]


def _describe_task(loaded: LoadedModel) -> str:
    if isinstance(loaded, PairModel):
        return f"compares {'photos' if loaded.kind == 'image' else 'texts'} with texts"
    if loaded.generates:
        return "generates text"
    if (task := find_dense_task(loaded.model)) is not None:
        return DENSE_TASKS[task]
    if loaded.kind == "image":
        return "classifies photos"
    if loaded.kind != "text":
        return f"classifies {_PLURALS[loaded.kind]}"
    return "classifies texts" if loaded.class_names else "predicts tokens of texts"


def _name_architecture(loaded: LoadedModel) -> str:
    model = loaded.model
    if isinstance(model, NaflexPacker):
        model = model.model
    return type(model.encoder if isinstance(model, SentenceEncoder) else model).__name__


def _describe_input(loaded: LoadedModel, prepared: PreparedBatch) -> str:
    inputs = prepared.inputs
    if isinstance(inputs, torch.Tensor) and loaded.kind == "audio":
        rate = getattr(loaded.preprocessor, "rate", None)
        heard = f" of {rate} values a second" if rate else ""
        size = "x".join(map(str, inputs.shape[1:]))
        return f"sounds{heard}, a second of which is prepared as {size} values"
    if isinstance(inputs, torch.Tensor) and loaded.kind == "video":
        frames, size = inputs.shape[1], f"{inputs.shape[-1]}x{inputs.shape[-2]}"
        return f"videos, prepared as {frames} frames of {size} pixels"
    if isinstance(inputs, torch.Tensor):
        return f"photos, prepared as {inputs.shape[-1]}x{inputs.shape[-2]} pixels"
    if isinstance(inputs, Mapping) and loaded.kind == "image":
        return "photos"
    longest = getattr(loaded.preprocessor, "max_length", None)
    return f"texts of at most {longest} tokens" if longest else "texts"
