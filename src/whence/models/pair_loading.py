"""Load models that compare inputs with texts: CLIP and its kind, and encoders of sentences."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL.Image import Image
from torch import Tensor, nn
from typing_extensions import override

from whence._util.files import is_file
from whence.engine.naflex_images import NaflexPacker, restore_image
from whence.errors import WhenceError
from whence.models.image_preprocessing import ProcessorPreprocessor
from whence.models.loaded import LoadedModel, PreparedBatch
from whence.models.pairs import ImageTextModel, PairModel
from whence.models.sentences import MODULES, SentenceEncoder, SentenceModel, read_modules
from whence.models.text_preprocessing import TextPreprocessor

# Texts of models that were trained on texts padded to this length, without a mask.
_PADDED = {"siglip": 64, "siglip2": 64}
_LENGTHS = "sentence_bert_config.json"


class PaddedTexts:
    """Tokenise texts, all to one length, for models that read the padding as well."""

    def __init__(self, tokenizer: Any, length: int) -> None:
        self.tokenizer, self.max_length = tokenizer, length

    def __call__(self, texts: Sequence[str]) -> PreparedBatch:
        """Tokenise a batch of texts."""
        how = {"padding": "max_length", "truncation": True, "max_length": self.max_length}
        encoded = self.tokenizer(list(texts), **how, return_tensors="pt")
        return PreparedBatch(encoded, [[] for _ in texts], texts=list(texts))


class NaflexPreprocessor(ProcessorPreprocessor):
    """Prepare photos with a processor that cuts them into any number of patches."""

    @override
    def to_pixels(self, image: Image) -> Tensor:
        processor: Any = self.processor
        made = processor([image], return_tensors="pt")
        patches, shapes = made["pixel_values"][0], made["spatial_shapes"][0]
        return restore_image(patches, shapes, processor.patch_size)


def prepare_texts(
    tokenizer: Any, model: nn.Module, may_change: bool = True
) -> Callable[[Sequence[str]], PreparedBatch]:
    """Find how texts become tokens of a model that compares them with photos.

    Args:
        tokenizer: Its tokenizer.
        model: The model.
        may_change: Whether they are whence's own. Those of the user stay as they are.
    """
    prepare = TextPreprocessor(tokenizer, model, may_change)
    config: Any = getattr(model, "config", None)
    longest = getattr(getattr(config, "text_config", None), "max_position_embeddings", None)
    if isinstance(longest, int) and longest > 0:
        prepare.max_length = min(prepare.max_length, longest)
    padded = _PADDED.get(getattr(config, "model_type", ""))
    return prepare if padded is None else PaddedTexts(tokenizer, min(padded, prepare.max_length))


def compares_images(model: object) -> bool:
    """Whether a model, or its class, embeds images and texts, and compares them."""
    return hasattr(model, "get_image_features") and hasattr(model, "get_text_features")


def make_image_text_model(
    name: str, model: nn.Module, tokenizer: Any, preprocessor: Any, may_change: bool = True
) -> ImageTextModel:
    """Make a CLIP or one of its kind ready to compare photos with texts."""
    processor: Any = getattr(preprocessor, "processor", None)
    if hasattr(processor, "max_num_patches"):  # SigLIP 2
        model = NaflexPacker(model, processor.patch_size)
        preprocessor = NaflexPreprocessor(processor)
    return ImageTextModel(
        *(name, model, "image", {}, 0, preprocessor, tokenizer),
        prepare_texts=prepare_texts(tokenizer, model, may_change),
    )


def load_pair(place: str, name: str, common: Mapping[str, Any]) -> tuple[PairModel, Any] | None:
    """Load a model that compares inputs with texts; None if it is another kind of model.

    Args:
        place: Its folder, or its name on the hub.
        name: Its name, as the user gave it.
        common: Arguments of all that transformers loads.

    Returns:
        The model, and what transformers tells of its loading.
    """
    library: Any = importlib.import_module("transformers")
    read = _FileReader(place, common)
    modules = read.find(MODULES)
    parts = ("", "mean", None) if modules is None else read_modules(modules, read)
    common = {**common, "subfolder": parts[0]} if parts[0] else common
    config = library.AutoConfig.from_pretrained(place, **common)
    kind = _find_class(library, config)
    if modules is None and kind is not None and compares_images(kind):
        model, info = _load(kind, place, config, common)
        # Pillow's way gives the same pixels with and without torchvision.
        images = library.AutoImageProcessor.from_pretrained(
            place, backend="pil", use_fast=False, **common
        )
        tokenizer = library.AutoTokenizer.from_pretrained(place, **common)
        return make_image_text_model(name, model, tokenizer, ProcessorPreprocessor(images)), info
    if modules is None and not is_bare_encoder(config.architectures or (), config):
        return None
    if kind is None or not kind.__name__.endswith("EncoderModel"):
        kind = library.AutoModel
    encoder, info = _load(kind, place, config, common)
    tokenizer = library.AutoTokenizer.from_pretrained(place, **common)
    loaded = make_sentence_model(name, encoder, tokenizer, *parts[1:])
    longest = read.find(f"{parts[0]}/{_LENGTHS}" if parts[0] else _LENGTHS)
    if longest is not None:
        prepare: Any = loaded.preprocessor
        stated = json.loads(longest.read_text(encoding="utf-8")).get("max_seq_length")
        prepare.max_length = min(prepare.max_length, stated or prepare.max_length)
    return loaded, info


def make_sentence_model(
    name: str,
    encoder: nn.Module,
    tokenizer: Any,
    pooling: str = "mean",
    head: nn.Module | None = None,
    may_change: bool = True,
) -> SentenceModel:
    """Make an encoder ready to compare texts with texts."""
    model = SentenceEncoder(encoder, pooling, head)
    model.training = encoder.training  # and the user's modules stay as they are
    prepare = TextPreprocessor(tokenizer, encoder, may_change)
    return SentenceModel(name, model, "text", {}, 0, prepare, tokenizer, prepare_texts=prepare)


def is_bare_encoder(names: Iterable[str], config: object) -> bool:
    """Whether a text model has no head, by the names of its classes and its configuration."""
    auto: Any = importlib.import_module("transformers.models.auto.modeling_auto")
    bare = {name for listed in auto.MODEL_MAPPING_NAMES.values() for name in _list_names(listed)}
    reads_text = hasattr(config, "vocab_size") and not hasattr(config, "image_size")
    return reads_text and any(name in bare or name.endswith("EncoderModel") for name in names)


def compare_with(
    loaded: LoadedModel, texts: Sequence[str] | None, scores_words: bool = True
) -> LoadedModel:
    """Make a loaded model compare its inputs with texts; without texts it stays as it is.

    Args:
        loaded: The model. A bare encoder of texts is made a `SentenceModel`, which takes the mean
            of its tokens.
        texts: The texts.
        scores_words: Whether the words of the explained texts get scores, too.

    Raises:
        WhenceError: The model compares nothing with texts, or they are none.
    """
    if texts is None:
        return loaded
    if isinstance(texts, str):
        raise WhenceError(f"texts is a list of texts, such as [{texts!r}, 'another one'].")
    model, tokenizer = loaded.model, loaded.tokenizer
    if not isinstance(loaded, PairModel) and tokenizer is not None:
        names, config = [type(model).__name__], getattr(model, "config", None)
        if is_bare_encoder(names, config):
            device = loaded.device
            loaded = make_sentence_model(loaded.name, model, tokenizer, may_change=False)
            loaded.device = device
    if not isinstance(loaded, PairModel):
        raise WhenceError(
            f"The model '{loaded.title}' compares nothing with texts. Name one that does, such as "
            f"a CLIP for photos or an encoder of sentences, or leave the texts out."
        )
    return loaded.with_texts(texts, scores_words)


class _FileReader:
    """Finds files of a model in its folder or on the hub."""

    def __init__(self, place: str, common: Mapping[str, Any]) -> None:
        self._place, self._local = place, bool(common["local_files_only"])

    def find(self, path: str) -> Path | None:
        """The file; None if the model has none of that name."""
        folder = Path(self._place)
        if folder.is_dir():
            return folder / path if is_file(folder / path) else None
        utils: Any = importlib.import_module("transformers.utils")
        found = utils.cached_file(
            self._place,
            path,
            local_files_only=self._local,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
        return None if found is None else Path(found)

    def __call__(self, path: str) -> Path:
        """The file, which has to be there."""
        found = self.find(path)
        if found is None:
            raise WhenceError(f"'{self._place}' has no {path}, which {MODULES} names.")
        return found


def _load(kind: Any, place: str, config: Any, common: Mapping[str, Any]) -> tuple[Any, Any]:
    model, info = kind.from_pretrained(
        place, config=config, use_safetensors=True, output_loading_info=True, **common
    )
    # A pooler is of no use to what is compared, and encoders of sentences often have none.
    missing = {key for key in info.get("missing_keys", ()) if "pooler" not in key}
    return model.float(), {**info, "missing_keys": missing}


def _find_class(library: Any, config: object) -> Any:
    """The class that a model was saved from; None if transformers has none of that name."""
    for name in getattr(config, "architectures", None) or ():
        if hasattr(library, name):
            return getattr(library, name)
    return None


def _list_names(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
