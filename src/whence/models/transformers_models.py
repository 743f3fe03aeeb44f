"""Load models of transformers from a folder or the hub."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from whence._util.files import is_file, is_folder
from whence._util.near_names import suggest_paths
from whence._util.text import first_line
from whence.errors import WhenceError
from whence.inputs.sources import Kind
from whence.models.dense import DENSE_TASKS
from whence.models.folder import check_embedded, check_folder, read_knowledge
from whence.models.hub import check_on_hub
from whence.models.image_preprocessing import ProcessorPreprocessor
from whence.models.loaded import LoadedModel
from whence.models.media_preprocessing import AudioPreprocessor, VideoPreprocessor
from whence.models.pair_loading import load_pair
from whence.models.text_preprocessing import TextPreprocessor
from whence.targets import find_class_names

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

Preprocessor: TypeAlias = (
    TextPreprocessor | ProcessorPreprocessor | VideoPreprocessor | AudioPreprocessor
)
_IMAGE_TASKS = ("ImageClassification", *DENSE_TASKS)
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(_IMAGE_TASKS, "image"),
    "VideoClassification": "video",
    "AudioClassification": "audio",
}
_TASKS = (*_KINDS, "SequenceClassification", "TokenClassification", "MaskedLM")


def load(name: str | Path) -> LoadedModel:
    """Load a classifier, a causal language model, or one that compares inputs with texts."""
    place = _find_place(name)
    if isinstance(place, Path):
        check_embedded(place)
        check_folder(place)
    with silence_transformers():
        try:
            # A model in the cache is used without asking the hub.
            loaded = _from_pretrained(str(place), str(name), local_files_only=True)
            loaded.knows = read_knowledge(place) if isinstance(place, Path) else ""
            return loaded
        except WhenceError as error:
            is_there = isinstance(place, Path) or isinstance(error.__cause__, ValueError)
            if is_there:  # and it is not usable
                raise
            check_on_hub(str(name))
            return _from_pretrained(str(place), str(name), local_files_only=False)


def _find_place(name: str | Path) -> Path | str:
    """Find the folder of a model, or else take its name for one on the hub."""
    if not str(name).strip():
        raise WhenceError("The model's name is empty.")
    folder = Path(name).expanduser()
    if is_folder(folder):
        return folder
    if is_file(folder):
        raise WhenceError(f"'{name}' is a file; name the folder that holds the model.")
    looks_local = str(name).startswith((".", "/", "~")) or str(name).count("/") > 1
    if isinstance(name, Path) or looks_local:
        raise WhenceError(
            f"There is no folder '{name}', or it may not be read.{suggest_paths(folder)}"
        )
    return name


def _from_pretrained(place: str, name: str, local_files_only: bool) -> LoadedModel:
    library: Any = importlib.import_module("transformers")
    # Code that comes with a model is never run.
    common = {"local_files_only": local_files_only, "trust_remote_code": False}
    try:
        pair = load_pair(place, name, common)
        if pair is not None:
            _check_complete(name, pair[1], "model")
            return pair[0]
        config = library.AutoConfig.from_pretrained(place, **common)
        _check_task(name, config)
        task = find_task(config)
        kind: Kind = _KINDS.get(task, "text")
        model, info = getattr(library, f"AutoModelFor{task}").from_pretrained(
            place, config=config, use_safetensors=True, output_loading_info=True, **common
        )
        if kind == "audio":
            processor = library.AutoFeatureExtractor.from_pretrained(place, **common)
        elif kind in ("image", "video"):
            # Pillow's way gives the same pixels with and without torchvision.
            processor = library.AutoImageProcessor.from_pretrained(
                place, backend="pil", use_fast=False, **common
            )
        else:
            processor = library.AutoTokenizer.from_pretrained(place, **common)
    except WhenceError:
        raise
    except Exception as error:  # transformers raises many kinds, some from other libraries
        raise _to_error(name, error) from error
    what = "language model" if task.endswith("LM") else "classifier"
    _check_complete(name, info, "model" if task in DENSE_TASKS else what)
    if kind == "text":
        check_tokenizer(name, processor, getattr(config, "vocab_size", 0))
    model = model.float()
    if task.endswith("LM"):
        count = model.get_output_embeddings().weight.shape[0]
        tokenize, causal = TextPreprocessor(processor, model), task == "CausalLM"
        return LoadedModel(name, model, "text", {}, count, tokenize, processor, generates=causal)
    class_names = find_class_names(model)
    prepare = make_preprocessor(kind, processor, model)
    tokenizer = processor if kind == "text" else None
    return LoadedModel(name, model, kind, class_names, config.num_labels, prepare, tokenizer)


def make_preprocessor(kind: Kind, processor: Any, model: nn.Module) -> Preprocessor:
    """What prepares inputs of a kind for a model, with its processor."""
    if kind == "video":
        return VideoPreprocessor(processor, model)
    if kind == "audio":
        return AudioPreprocessor(processor, model)
    return (
        TextPreprocessor(processor, model) if kind == "text" else ProcessorPreprocessor(processor)
    )


def find_task(config: object) -> str:
    """Find what a model was trained for, as the name of transformers' automatic class has it."""
    auto: Any = importlib.import_module("transformers.models.auto.modeling_auto")
    architectures = set(getattr(config, "architectures", None) or ())
    if architectures & set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()):
        return "CausalLM"
    if architectures & set(auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES.values()):
        return "AudioClassification"  # also those that are named after sequences
    for task in _TASKS:
        if any(f"For{task}" in architecture for architecture in architectures):
            return task
    sees = any(hasattr(config, field) for field in ("image_size", "num_channels"))
    return "ImageClassification" if sees else "SequenceClassification"


def _check_task(name: str, config: object) -> None:
    """Refuse models that need to be told more: which token to explain, or what to find."""
    auto: Any = importlib.import_module("transformers.models.auto.modeling_auto")
    mappings = auto.MODEL_FOR_CTC_MAPPING_NAMES, auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES
    speech = {one for mapping in mappings for one in mapping.values()}
    architectures = set(getattr(config, "architectures", None) or ())
    if architectures & set(auto.MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES.values()):
        raise WhenceError(
            f"'{name}' finds in a photo what texts name. Load it yourself, and explain what its "
            f"processor returns: Explainer(model).explain(processor(text=texts, images=photo, "
            f"return_tensors='pt'), target=targets.box(), of='pixel_values')."
        )
    if speech & architectures:
        raise WhenceError(
            f"'{name}' writes down speech, and explain needs a classifier. Load it yourself and "
            f"say which token to explain: Explainer(model).explain(inputs, "
            f"target=targets.token(position))."
        )
    architectures -= set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())  # these read texts alone
    if architectures & set(auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values()):
        raise WhenceError(
            f"'{name}' reads a text and writes another. Load it yourself and say which token to "
            f"explain, after those of decoder_input_ids: Explainer(model).explain(inputs, "
            f"target=targets.token(-1), of='input_ids')."
        )
    if architectures & set(auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values()):
        raise WhenceError(
            f"'{name}' writes about images: whence generate PROMPT --image FILE --model NAME, or "
            f"load it yourself: Explainer(model).explain(inputs, target=targets.token(-1), "
            f"of=['input_ids', 'pixel_values'])."
        )


def _check_complete(name: str, info: Mapping[str, Iterable[str]], what: str) -> None:
    """Refuse weights without a head: transformers would make one up at random."""
    missing = sorted(info.get("missing_keys", ()))
    if missing:
        raise WhenceError(
            f"'{name}' is not a trained {what}: its weights lack '{missing[0]}'"
            + (f" and {len(missing) - 1} more." if len(missing) > 1 else ".")
        )


def check_tokenizer(name: str, tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> None:
    """Refuse a tokenizer that transformers made up because the model came without one."""
    ordinary = len(tokenizer) - len(tokenizer.all_special_ids)
    if ordinary < 0.1 * vocabulary:
        raise WhenceError(
            f"'{name}' came without its tokenizer: {ordinary} tokens are known, the model has "
            f"{vocabulary}. Save it beside the model with tokenizer.save_pretrained(folder)."
        )


def _to_error(name: str, error: Exception) -> WhenceError:
    message = first_line(error)
    if "Could not import module" in message:  # the reason is further down
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        message = f"transformers cannot be imported here ({first_line(root)})"
    if "trust_remote_code" in str(error):
        return WhenceError(
            f"'{name}' needs code of its own, which whence does not run; load it yourself and use "
            f"Explainer(model)."
        )
    if "Unrecognized configuration class" in message:
        return WhenceError(
            f"'{name}' is neither a classifier, detector or segmenter of photos, nor a classifier "
            f"of texts, videos or sounds, an encoder or a language model. Load it yourself and use "
            f"Explainer(model)."
        )
    if "safetensors" in message and "no file named" in message:
        return WhenceError(f"'{name}' has no weights in safetensors, and whence opens no pickles.")
    return WhenceError(f"'{name}' cannot be loaded: {message or type(error).__name__}.")


@contextlib.contextmanager
def silence_transformers() -> Iterator[None]:
    """Switch off progress bars and warnings while loading: problems are raised as errors."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
