"""Load models of torchvision by name, with weights from a file."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from PIL import Image
from torch import nn

from whence._util.near_names import suggest_names
from whence.errors import WhenceError
from whence.models.image_preprocessing import CenterCropPreprocessor
from whence.models.loaded import LoadedModel
from whence.models.weights import count_classes, load_weights, read_weights

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def load(name: str, weights: str | Path | None) -> LoadedModel:
    """Load a model of torchvision."""
    try:
        models: Any = importlib.import_module("torchvision.models")
    except Exception as error:  # beside another build of torch its import fails in its own ways
        raise WhenceError(
            f"'torchvision:{name}' needs torchvision: pip install 'whence[torchvision]' ({error})."
        ) from error
    known = models.list_models(module=models)
    if name not in known:
        near = suggest_names(name, known)
        raise WhenceError(f"torchvision has no model '{name}' that classifies images.{near}")
    if weights is None:
        raise WhenceError(
            f"'torchvision:{name}' needs a weights file in safetensors: torchvision's own are "
            f"pickled, and pickles can run code when they are opened."
        )
    tensors = read_weights(weights)
    model = models.get_model(name, weights=None)
    classifier = [n for n, module in model.named_modules() if isinstance(module, nn.Linear)][-1]
    count = count_classes(tensors, classifier, 1000)
    if count != 1000:
        model = models.get_model(name, weights=None, num_classes=count)
    load_weights(model, tensors, weights)
    # Weights for other classes than those of ImageNet come without names.
    meta = models.get_model_weights(name).DEFAULT.meta if count == 1000 else {}
    return LoadedModel(
        name=f"torchvision:{name}",
        model=model,
        kind="image",
        class_names=dict(enumerate(meta.get("categories", ()))),
        class_count=count,
        preprocessor=find_preprocessor(model),
    )


def find_preprocessor(model: nn.Module) -> CenterCropPreprocessor:
    """Find how a model of torchvision takes photos: as those for ImageNet do, at its own size."""
    side = int(getattr(model, "image_size", 224))
    return CenterCropPreprocessor(
        (side, side), round(side * 256 / 224), _MEAN, _STD, Image.Resampling.BILINEAR
    )
