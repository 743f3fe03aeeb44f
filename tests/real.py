"""Trained weights of a ViT-Ti and photos of ImageNet, in the folder that WHENCE_DATA names."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn


def load_real_vit(data: Path) -> nn.Module:
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224")
    model.load_state_dict(load_file(data / "vit_tiny_in1k" / "model.safetensors"))
    return model.eval()


def read_photo(data: Path, name: str) -> Tensor:
    """Read a photo as the model takes it: shorter side 248, the middle 224 x 224; in float64."""
    image_library = pytest.importorskip("PIL.Image")
    (path,) = (data / "imagenet" / "val").glob(f"*/{name}")
    image = image_library.open(path).convert("RGB")
    scale = 248 / min(image.size)
    image = image.resize([round(side * scale) for side in image.size], image_library.BICUBIC)
    left, top = ((side - 224) // 2 for side in image.size)
    image = image.crop((left, top, left + 224, top + 224))
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).double() / 255
    return (pixels - 0.5) / 0.5
