"""Models that the user has loaded already: modules with their processors, and pipelines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from whence._util.model_name import find_model_name
from whence.errors import WhenceError
from whence.inputs.sounds import Recording
from whence.inputs.sources import NOUNS, Kind
from whence.models.folder import read_architectures
from whence.models.image_preprocessing import ProcessorPreprocessor
from whence.models.loaded import LoadedModel, PreparedBatch, load
from whence.models.pair_loading import compares_images, make_image_text_model
from whence.models.text_preprocessing import TextPreprocessor
from whence.models.transform_preprocessing import TransformPreprocessor
from whence.models.transformers_models import make_preprocessor
from whence.targets import find_class_names
from whence.tracing import unwrap_model

if TYPE_CHECKING:
    from transformers import Pipeline

ModelObject: TypeAlias = "nn.Module | Pipeline | LoadedModel"

_IMAGE_TASKS = (
    *("image-classification", "object-detection"),
    *("image-segmentation", "depth-estimation", "video-classification"),
)
_AUDIO_TASKS = ("audio-classification",)
_PAIR_TASKS = ("zero-shot-image-classification",)
_TEXT_TASKS = (
    *("text-classification", "sentiment-analysis", "token-classification", "ner"),
    *("fill-mask", "text-generation"),
)


class MissingProcessor:
    """Stands for the processor of a model that came without one: tensors are all it takes."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, inputs: Sequence[Any]) -> PreparedBatch:
        """Say what is missing."""
        if isinstance(inputs[0], str):
            raise WhenceError(
                f"{self.name} came without its tokenizer, which makes tokens of a text. Pass it: "
                f"processor=AutoTokenizer.from_pretrained(…)."
            )
        if isinstance(inputs[0], Recording):
            raise WhenceError(
                f"{self.name} came without its feature extractor, which makes numbers of a sound. "
                f"Pass it: processor=AutoFeatureExtractor.from_pretrained(…)."
            )
        raise WhenceError(
            f"{self.name} came without its image processor, which makes pixels of a photo. Pass "
            f"it: processor=AutoImageProcessor.from_pretrained(…), or any function from a PIL "
            f"image to a tensor (3, height, width)."
        )


def resolve(
    model: str | Path | ModelObject | None,
    kind: Kind | None = None,
    processor: object = None,
    weights: str | Path | None = None,
    device: str | None = None,
) -> LoadedModel:
    """Load a model by name, or wrap one that is loaded.

    Args:
        model: As for `load` or `wrap`.
        kind: Of the inputs; a model by name that explains another kind is an error.
        processor: As for `wrap`.
        weights: As for `load`.
        device: As for `load`.

    Raises:
        WhenceError: As `load` and `wrap` do; or what is for the one was given with the other.
    """
    if isinstance(model, str | Path) or model is None:
        if processor is not None:
            raise WhenceError("processor= is for a model object; a model by name brings its own.")
        return load(model, kind, weights, device)
    if weights is not None or device is not None:
        raise WhenceError(
            "weights= and device= are for models by name; this one has its weights, and "
            "model.to(device) moves it."
        )
    return wrap(model, processor)


def is_model(value: object) -> bool:
    """Whether a value is a model, or holds one, as `wrap` takes them."""
    is_loaded = isinstance(value, nn.Module | LoadedModel)
    return is_loaded or _is_a(value, "Pipeline", "pipelines.base")


def reads_videos(model: object) -> bool:
    """Whether a model, given by name or as it is, is one of videos; it is not loaded to say so.

    A name on the hub is looked up among the files that were downloaded before.
    """
    if isinstance(model, str | Path):
        return any("ForVideoClassification" in one for one in read_architectures(model))
    if isinstance(model, LoadedModel):
        return model.kind == "video"
    inner = getattr(model, "model", model) if not isinstance(model, nn.Module) else model
    return isinstance(inner, nn.Module) and _find_kind(unwrap_model(inner)) == "video"


def wrap(model: ModelObject, processor: object = None) -> LoadedModel:
    """Make a model that is loaded already explain photos or texts. It stays as it is.

    Args:
        model: A module of transformers, timm, torchvision or your own; or a pipeline of
            transformers, which brings its processor.
        processor: What prepares photos or texts for the model: an image processor, a tokenizer or
            a processor of both, all of transformers, or any function from a PIL image to a tensor
            (3, height, width). Models of timm and torchvision need none.

    Raises:
        WhenceError: It is no such model, the pipeline is for another task, or the processor does
            not belong to the model.
    """
    if isinstance(model, nn.Module):
        return _wrap_module(model, processor)
    if isinstance(model, LoadedModel) or _is_a(model, "Pipeline", "pipelines.base"):
        if processor is not None:
            raise WhenceError("processor= is for a bare model; this one brings its own.")
        return model if isinstance(model, LoadedModel) else _wrap_pipeline(model)
    raise WhenceError(
        f"A model is a name, a folder, a torch.nn.Module, a pipeline of transformers, or what "
        f"whence.models.load returned, not {type(model).__name__}."
    )


def _wrap_pipeline(pipeline: Pipeline) -> LoadedModel:
    task, model = pipeline.task, pipeline.model
    if task in _IMAGE_TASKS:
        processor = pipeline.image_processor or getattr(pipeline, "feature_extractor", None)
    elif task in _AUDIO_TASKS:
        processor = pipeline.feature_extractor
    elif task in _TEXT_TASKS:
        processor = pipeline.tokenizer
    elif task in _PAIR_TASKS:
        processor = pipeline
    else:
        raise WhenceError(
            f"A pipeline for {task} is not explained as it is, but those for "
            f"{', '.join((*_IMAGE_TASKS, *_AUDIO_TASKS, *_PAIR_TASKS, *_TEXT_TASKS))} are. Explain "
            f"its model on "
            f"the inputs that it takes, and say what of its output: "
            f"Explainer(pipeline.model).explain(inputs, target=whence.targets.…)."
        )
    return _wrap_module(model, processor)


def _wrap_module(model: nn.Module, processor: object) -> LoadedModel:
    inner = unwrap_model(model)
    if processor is not None and compares_images(inner):
        return _wrap_pair(model, processor)
    name = find_model_name(inner)
    kind = _find_kind(inner)
    names = find_class_names(inner)
    can_generate: Any = getattr(inner, "can_generate", None)
    generates = callable(can_generate) and bool(can_generate())
    tokenizer: Any = None
    if processor is None:
        preprocessor, more = _find_own(inner)
        names = names or more
    else:
        processor = _choose_part(processor, inner, kind)
        is_tokenizer = _is_a(processor, "PreTrainedTokenizerBase", "tokenization_utils_base")
        _check_kind(name, inner, kind, processor, is_tokenizer)
        if is_tokenizer:
            tokenizer, kind = processor, "text"
            preprocessor = TextPreprocessor(tokenizer, model, may_change=False)
        elif kind in ("video", "audio"):
            preprocessor = make_preprocessor(kind, processor, inner)
        else:
            kind, preprocessor = "image", _make_image_preprocessor(processor)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return LoadedModel(
        *(name, model, kind, names, _count_classes(inner)),
        preprocessor or MissingProcessor(name),
        *(tokenizer, device),
        generates=generates,
    )


def _find_kind(model: nn.Module) -> Kind:
    """What a model reads, by the name of its main input and of its class."""
    name = getattr(model, "main_input_name", None)
    if name in ("input_values", "input_features"):
        return "audio"
    if any(one.__name__.endswith("ForVideoClassification") for one in type(model).__mro__):
        return "video"
    return "text" if name == "input_ids" else "image"


def _choose_part(processor: object, model: nn.Module, kind: Kind) -> Any:
    """The tokenizer, image processor or feature extractor of a processor that has several."""
    if not _is_a(processor, "ProcessorMixin", "processing_utils"):
        return processor
    if hasattr(model, "get_image_features") or hasattr(model, "get_text_features"):
        raise WhenceError(
            f"{type(model).__name__} takes photos and texts together: "
            f"Explainer(model).explain(processor(text=texts, images=photos, return_tensors='pt'), "
            f"of='pixel_values')."
        )
    parts = {"text": "tokenizer", "audio": "feature_extractor"}
    return getattr(processor, parts.get(kind, "image_processor"), processor)


def _wrap_pair(model: nn.Module, processor: object) -> LoadedModel:
    """Wrap a model that compares photos with texts, with the processor of both."""
    tokenizer, images = (getattr(processor, n, None) for n in ("tokenizer", "image_processor"))
    if tokenizer is None or images is None:
        name = type(unwrap_model(model)).__name__
        raise WhenceError(
            f"{name} compares photos with texts: give the processor of both, "
            f"processor=AutoProcessor.from_pretrained(…)."
        )
    name, prepare = find_model_name(unwrap_model(model)), _make_image_preprocessor(images)
    loaded = make_image_text_model(name, model, tokenizer, prepare, may_change=False)
    loaded.device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return loaded


def _check_kind(
    name: str, model: nn.Module, kind: Kind, processor: object, is_tokenizer: bool
) -> None:
    if not is_tokenizer and not callable(processor):
        raise WhenceError(
            f"A processor is a tokenizer, an image processor, or a function from a PIL image to a "
            f"tensor, not {type(processor).__name__}."
        )
    if hasattr(model, "main_input_name") and is_tokenizer != (kind == "text"):
        wrong, right = "a tokenizer", "feature extractor" if kind == "audio" else "image processor"
        if not is_tokenizer:
            wrong, right = ("an image processor", "tokenizer")
        raise WhenceError(f"{name} reads {NOUNS[kind]}: give its {right}, not {wrong}.")


def _make_image_preprocessor(processor: Any) -> ProcessorPreprocessor | TransformPreprocessor:
    if _is_a(processor, "ImageProcessingMixin", "image_processing_base"):
        return ProcessorPreprocessor(processor)
    return TransformPreprocessor(processor)


def _find_own(model: nn.Module) -> tuple[Any, dict[int, str]]:
    """Find how a model of timm or torchvision takes photos, and the names of its classes."""
    from whence.models import timm_models, torchvision_models

    if isinstance(getattr(model, "pretrained_cfg", None), dict) and "timm" in sys.modules:
        return timm_models.find_preprocessor(model), timm_models.find_imagenet_names(model)
    if type(model).__module__.startswith("torchvision."):
        return torchvision_models.find_preprocessor(model), {}
    return None, {}


def _count_classes(model: nn.Module) -> int:
    for holder, name in ((getattr(model, "config", None), "num_labels"), (model, "num_classes")):
        count = getattr(holder, name, None)
        if isinstance(count, int):
            return count
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return linear[-1].out_features if linear else 0


def _is_a(value: object, name: str, module: str) -> bool:
    """Whether a value is of a class of transformers; the library is not imported to ask."""
    library = sys.modules.get(f"transformers.{module}")
    kind = getattr(library, name, None)
    return isinstance(kind, type) and isinstance(value, kind)
