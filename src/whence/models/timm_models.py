"""Load models of timm by name, with weights from the hub or a file."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from whence._util.near_names import suggest_names
from whence.errors import WhenceError
from whence.models.hub import fetch
from whence.models.image_preprocessing import CenterCropPreprocessor
from whence.models.loaded import LoadedModel
from whence.models.transform_preprocessing import TransformPreprocessor
from whence.models.weights import count_classes, load_weights, read_weights
from whence.targets import find_class_names


def load(name: str, weights: str | Path | None) -> LoadedModel:
    """Load a model of timm, with its own weights from the hub or those of a file."""
    try:
        timm: Any = importlib.import_module("timm")
    except ImportError as error:
        message = f"'timm:{name}' needs timm: pip install 'whence[timm]' ({error})."
        raise WhenceError(message) from error
    if not timm.is_model(name):
        near = suggest_names(name, timm.list_models())
        raise WhenceError(f"timm has no model '{name}'.{near}")
    model = _create_model(timm, name, weights)
    return LoadedModel(
        name=f"timm:{name}",
        model=model.float(),
        kind="image",
        class_names=find_class_names(model) or find_imagenet_names(model),
        class_count=model.num_classes,
        preprocessor=find_preprocessor(model),
    )


def find_preprocessor(model: Any) -> CenterCropPreprocessor | TransformPreprocessor:
    """Find how a model of timm takes photos."""
    data: Any = importlib.import_module("timm.data")
    config = data.resolve_data_config(model=model)
    if CenterCropPreprocessor.can_read_timm(config):
        return CenterCropPreprocessor.from_timm(config)
    return TransformPreprocessor(data.create_transform(**config))


def _create_model(timm: Any, name: str, weights: str | Path | None) -> Any:
    config = timm.get_pretrained_cfg(name)
    if weights is None:
        if config is None or not config.hf_hub_id:
            raise WhenceError(f"The hub has no weights of 'timm:{name}'; give a weights file.")
        # timm's own loading falls back to pickles, so the file is fetched here.
        tag = f".{config.tag}" if config.tag else ""
        weights = fetch(f"timm/{config.architecture}{tag}", "model.safetensors")
    tensors = read_weights(weights)
    classifier = config.classifier if config else None
    first = classifier[0] if isinstance(classifier, tuple | list) else classifier
    count = count_classes(tensors, first or "head", 1000)
    model = timm.create_model(name, pretrained=False, num_classes=count)
    load_weights(model, tensors, weights)
    return model


def find_imagenet_names(model: Any) -> dict[int, str]:
    """Find the names of ImageNet's classes, for models of timm that were trained on it."""
    data: Any = importlib.import_module("timm.data")
    subset = data.infer_imagenet_subset(model)
    if not subset:
        return {}
    info = data.ImageNetInfo(subset)
    return {i: info.index_to_description(i) for i in range(model.num_classes)}
