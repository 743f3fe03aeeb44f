"""Load a language model that reads images, with the processor that prepares them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from whence._util.files import is_folder
from whence._util.model_name import shorten_model_name
from whence._util.text import first_line
from whence.errors import WhenceError
from whence.models.hub import check_on_hub
from whence.models.loaded import find_device
from whence.models.transformers_models import silence_transformers


@dataclass(frozen=True)
class VisionLanguageModel:
    """A language model that reads images.

    Attributes:
        name: Its name, without the path to its folder.
        model: The model.
        processor: Prepares prompts and images.
        device: Where it computes.
    """

    name: str
    model: nn.Module
    processor: Any
    device: torch.device

    def encode(self, prompt: str, images: Sequence[Image.Image]) -> dict[str, Any]:
        """Prepare a prompt with images as the model takes them.

        The images come first, as the user's turn of a chat where the processor has a template, or
        where the prompt itself marks them.

        Raises:
            WhenceError: The processor does not take them.
        """
        if getattr(self.processor, "chat_template", None):
            content = [*({"type": "image"} for _ in images), {"type": "text", "text": prompt}]
            turns = [{"role": "user", "content": content}]
            written = self.processor.apply_chat_template(turns, add_generation_prompt=True)
        else:
            mark = getattr(self.processor, "image_token", "") or ""
            is_marked = not mark or mark in prompt  # then the prompt says where images stand
            written = prompt if is_marked else " ".join([*[mark] * len(images), prompt])
        try:
            made = self.processor(text=[written], images=list(images), return_tensors="pt")
        except Exception as error:  # processors differ in what they want
            raise WhenceError(
                f"The processor of '{self.name}' does not take this prompt with {len(images)} "
                f"image(s): {first_line(error)}."
            ) from error
        return {n: x.to(self.device) if isinstance(x, Tensor) else x for n, x in made.items()}


def load_vision_language_model(name: str | Path, device: str | None = None) -> VisionLanguageModel:
    """Load a language model that reads images, and its processor.

    Args:
        name: A folder that transformers saved to, or a name on the hub.
        device: As for `load`.

    Raises:
        WhenceError: There is no such model, or it does not generate text after images.
    """
    library: Any = importlib.import_module("transformers")
    place, where = str(name), find_device(device)
    common: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    with silence_transformers():
        if not is_folder(Path(place)):
            try:
                library.AutoConfig.from_pretrained(place, **common)
            except Exception:  # it is not in the hub's cache
                check_on_hub(place)
                common["local_files_only"] = False
        try:
            kind = library.AutoModelForImageTextToText
            model = kind.from_pretrained(place, use_safetensors=True, **common)
            processor = library.AutoProcessor.from_pretrained(place, **common)
        except Exception as error:  # transformers raises many kinds, some from other libraries
            raise WhenceError(
                f"'{name}' cannot be loaded as a model that writes about images, with its "
                f"processor: {first_line(error)}."
            ) from error
    if not hasattr(processor, "tokenizer") or not hasattr(processor, "image_processor"):
        raise WhenceError(
            f"'{name}' came without a processor for images and words. Save it beside the model "
            f"with processor.save_pretrained(folder)."
        )
    shown = shorten_model_name(place)
    return VisionLanguageModel(shown, model.to(where).eval(), processor, where)
