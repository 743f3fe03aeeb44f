"""Describe models of transformers that only Python code prepares inputs for.

The command line explains classifiers and language models, for which `load` prepares photos and
texts. Of any other model of transformers a sample is made by its own processor, and methods are
tried on each of its inputs.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whence import targets
from whence._util.model_name import shorten_model_name
from whence._util.progress import bar
from whence._util.text import first_line
from whence.demo import PHOTO, SENTENCES
from whence.errors import WhenceError
from whence.explainer import Explainer
from whence.inputs.images import read_image
from whence.methods import registry
from whence.models.transformers_models import check_tokenizer, silence_transformers
from whence.models.trial import MethodTrial
from whence.targets import AnyTarget

# The inputs that get scores, of all that transformers' processors make.
_SCORED = (
    "input_ids",
    "pixel_values",
    "pixel_values_videos",
    "input_values",
    "input_features",
    "flattened_patches",
)
_RATE = 16_000


def _read_start(outputs: Any, _: Any) -> Tensor:
    """The logit of an answer that starts at the first token."""
    logits: Tensor = outputs.start_logits[:, 0]
    return logits


# What is explained in models with many outputs for a sample, and how that is written in Python, by
# the end of the name of their class.
_TARGETS: dict[str, tuple[AnyTarget, str]] = {
    "ForCTC": (targets.token(0), "targets.token(0), "),
    "ForMaskedLM": (targets.token(0), "targets.token(0), "),
    "ForTokenClassification": (targets.token(0), "targets.token(0), "),
    "ForAudioFrameClassification": (targets.token(0), "targets.token(0), "),
    "ForObjectDetection": (targets.box(), "targets.box(), "),
    "ForSemanticSegmentation": (targets.pixel(0, 0), "targets.pixel(0, 0), "),
}


@dataclass(frozen=True)
class ProcessedDescription:
    """What is known of a model from a sample that its own processor made.

    Attributes:
        name: The model's name, as the user gave it.
        architecture: The name of its class.
        parameters: How many numbers its weights are.
        inputs: The shape of each input of the sample.
        methods: For each input that can get scores, the methods that run.
        refused: For each of them, the other methods by the reason why not.
        python: How to explain it in Python.
    """

    name: str
    architecture: str
    parameters: int
    inputs: dict[str, list[int]]
    methods: dict[str, list[str]]
    refused: dict[str, dict[str, list[str]]]
    python: str


class NoSampleError(WhenceError):
    """A model can be loaded, but no sample of its inputs can be made and explained."""


def describe_processed(name: str) -> ProcessedDescription:
    """Describe a model of transformers of any task, in a folder or in the cache of the hub.

    Raises:
        NoSampleError: Its processor is missing or makes no sample, or no method runs on it.
        WhenceError: It cannot be loaded.
    """
    with silence_transformers():
        model = _load_model(name)
        processor = _load_processor(name)
        _check_words(name, processor, model)
        inputs = _make_inputs(processor, model)
    architecture, explainer = type(model).__name__, Explainer(model)
    target, written = _find_target(model)
    methods: dict[str, list[str]] = {}
    refused: dict[str, dict[str, list[str]]] = {}
    for of in (one for one in _SCORED if one in inputs):
        trial, names = (
            MethodTrial(partial(explainer.explain, inputs, target, of=of)),
            registry.available(),
        )
        with bar(f"Trying methods on {of}", len(names)) as advance:
            methods[of], refused[of] = trial.try_all(names, advance)
    if not any(methods.values()):
        problems = [said for found in refused.values() for said in found]
        raise NoSampleError(
            f"No method ran on a sample of the inputs of '{name}'"
            + (f": {problems[0]}" if problems else ".")
        )
    return ProcessedDescription(
        name=shorten_model_name(name),
        architecture=architecture,
        parameters=sum(one.numel() for one in model.parameters()),
        inputs={key: list(x.shape) for key, x in inputs.items() if isinstance(x, Tensor)},
        methods=methods,
        refused=refused,
        python=f"Explainer(model).explain(inputs, {written}of={next(iter(methods))!r})",
    )


def _find_target(model: nn.Module) -> tuple[AnyTarget | None, str]:
    """Find something to explain in a model whose logits are not one row for each sample."""
    architecture = type(model).__name__
    if hasattr(model, "qa_outputs"):
        return _read_start, "lambda outputs, inputs: outputs.start_logits[:, 0], "
    return next((one for end, one in _TARGETS.items() if architecture.endswith(end)), (None, ""))


def _load_model(name: str) -> nn.Module:
    library: Any = importlib.import_module("transformers")
    common = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = library.AutoConfig.from_pretrained(name, **common)
        names = getattr(config, "architectures", None) or ()
        kind = next((getattr(library, one) for one in names if hasattr(library, one)), None)
        if kind is None:
            raise WhenceError(f"The config.json of '{name}' names no class of transformers.")
        model: nn.Module = kind.from_pretrained(name, use_safetensors=True, **common)
    except WhenceError:
        raise
    except Exception as error:  # transformers raises many kinds, some from other libraries
        raise WhenceError(f"'{name}' cannot be loaded: {first_line(error)}.") from error
    return model.float().eval()


def _load_processor(name: str) -> Any:
    library: Any = importlib.import_module("transformers")
    common = {"local_files_only": True, "trust_remote_code": False}
    problem = "there is none"
    for kind in ("AutoProcessor", "AutoTokenizer", "AutoImageProcessor", "AutoFeatureExtractor"):
        try:
            return getattr(library, kind).from_pretrained(name, **common)
        except Exception as error:  # as above
            problem = first_line(error)
    raise NoSampleError(
        f"'{name}' came without a processor or tokenizer that makes its inputs ({problem}). Save "
        f"it beside the model with processor.save_pretrained(folder)."
    )


def _check_words(name: str, processor: Any, model: nn.Module) -> None:
    """Refuse a tokenizer that transformers made up, and knows no words."""
    tokenizer = getattr(processor, "tokenizer", processor)
    config: Any = model.config
    words = getattr(getattr(config, "text_config", config), "vocab_size", 0)
    if hasattr(tokenizer, "all_special_ids"):
        try:
            check_tokenizer(name, tokenizer, words)
        except WhenceError as error:
            raise NoSampleError(str(error)) from None


def _make_inputs(processor: Any, model: nn.Module) -> dict[str, Any]:
    """Make a sample by the model's processor: the embedded photo, a sentence, a tone."""
    given: dict[str, Any] = {}
    parameters = inspect.signature(model.forward).parameters
    if _has_part(processor, "image_processor", "ImageProcessor"):
        given["images"] = [read_image(PHOTO)]
    if _has_part(processor, "feature_extractor", "FeatureExtractor"):
        tone = np.sin(np.arange(_RATE // 4) * 0.3).astype(np.float32)
        key = "raw_speech" if not hasattr(processor, "tokenizer") else "audio"
        given |= {key: tone, "sampling_rate": _RATE}
    is_tokenizer = hasattr(processor, "convert_ids_to_tokens")
    reads = is_tokenizer or (hasattr(processor, "tokenizer") and "input_ids" in parameters)
    if reads:
        given["text"] = [_write_prompt(processor, "images" in given)]
    try:
        made: Mapping[str, Any] = processor(**given, return_tensors="pt")
    except Exception as error:  # processors differ in what they want
        raise NoSampleError(
            f"The processor {type(processor).__name__} makes no inputs from a sample: "
            f"{first_line(error)}. Make them yourself, and call Explainer(model).explain(inputs)."
        ) from error
    inputs = {key: value for key, value in made.items() if key in parameters}
    if type(model).__name__.endswith("ForMultipleChoice"):
        inputs = {key: value[None] for key, value in inputs.items()}
    config: Any = model.config
    if "decoder_input_ids" in parameters and getattr(config, "is_encoder_decoder", False):
        start = getattr(config, "decoder_start_token_id", None)
        inputs["decoder_input_ids"] = torch.tensor([[0 if start is None else start]])
    return inputs


def _has_part(processor: Any, part: str, ending: str) -> bool:
    return hasattr(processor, part) or ending in type(processor).__name__


def _write_prompt(processor: Any, has_image: bool) -> str:
    """Write a sentence as the model wants it beside an image."""
    if not has_image:
        return SENTENCES[0]
    if getattr(processor, "chat_template", None):
        content = [{"type": "image"}, {"type": "text", "text": SENTENCES[0]}]
        asked = [{"role": "user", "content": content}]
        written: str = processor.apply_chat_template(asked, add_generation_prompt=True)
        return written
    return f"{getattr(processor, 'image_token', '')}{SENTENCES[0]}"
