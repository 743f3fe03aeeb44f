"""What is saved of an explanation: facts as JSON, and tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import Tensor

from whence.explanation.media import decode_media, encode_media
from whence.explanation.parts import Check
from whence.explanation.photo import decode_photos, encode_photos
from whence.layout import Tokens
from whence.targets import TargetArea

if TYPE_CHECKING:
    from whence.explanation.explanation import Explanation

_TENSORS = ("scores", "target", "logits")
_MAYBE = ("values", "probabilities")
_FACTS = (
    *("grid", "image_size", "tokens", "target_names", "multi_label"),
    *("method", "class_specific", "settings", "details", "version", "checks"),
    *("model", "model_knows", "areas", "axes", "length", "image_sizes"),
)


def pack(explanation: Explanation) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Take an explanation apart: facts that JSON can hold, and tensors by name."""
    facts = {name: getattr(explanation, name) for name in _FACTS}
    facts["tokens"] = None if explanation.tokens is None else asdict(explanation.tokens)
    facts["checks"] = [asdict(check) for check in explanation.checks]
    facts["areas"] = _map_areas(explanation.areas, asdict)
    tensors = {name: getattr(explanation, name) for name in (*_TENSORS, *_MAYBE)}
    facts["photos"], pictures = None, dict[str, Tensor]()
    if explanation.photos is not None:
        facts["photos"], pictures = encode_photos(explanation.photos)
    if explanation.media is not None:
        facts["media"], values = encode_media(explanation.media)
        pictures |= values
    known = {name: value for name, value in tensors.items() if value is not None}
    return facts, known | pictures


def unpack(saved: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The fields of an explanation that `pack` took apart; files of earlier versions lack some."""
    facts = {"class_specific": True, "details": None, "checks": [], **saved}
    facts = {"model": "", "model_knows": "", "areas": None, "axes": (), "length": None, **facts}
    facts["checks"] = [Check(**check) for check in facts["checks"]]
    facts["areas"] = _map_areas(facts["areas"], TargetArea.from_saved)
    for pair in ("grid", "image_size"):
        facts[pair] = None if facts[pair] is None else tuple(facts[pair])
    facts["axes"] = tuple(map(str, facts["axes"]))
    if facts.setdefault("image_sizes", None) is not None:
        sizes = facts["image_sizes"]
        facts["image_sizes"] = [[(int(h), int(w)) for h, w in sample] for sample in sizes]
    facts["tokens"] = None if facts["tokens"] is None else Tokens(**facts["tokens"])
    fields: dict[str, Any] = {name: tensors[name] for name in _TENSORS}
    fields |= {name: tensors.get(name) for name in _MAYBE}
    fields |= {name: facts[name] for name in _FACTS}
    boxes, count = saved.get("photos"), len(tensors["scores"])
    media = saved.get("media")
    fields["media"] = None if media is None else decode_media(media, tensors, count)
    return fields | {"photos": None if boxes is None else decode_photos(boxes, tensors, count)}


def _map_areas(areas: list[Any] | None, change: Callable[[Any], Any]) -> list[Any] | None:
    """Change areas of samples, or of the targets of each sample."""
    if areas is None:
        return None
    return [
        _map_areas(one, change) if isinstance(one, list) else None if one is None else change(one)
        for one in areas
    ]
