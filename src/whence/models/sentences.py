"""Encoders of sentences: a text becomes a vector, and vectors are compared by their cosine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from whence.errors import WhenceError
from whence.explainer import Explainer
from whence.explanation import Explanation
from whence.models.loaded import BatchInputs, PreparedBatch
from whence.models.pairs import Compared, PairModel
from whence.targets import AskedClasses, join_names, parse_targets, similarity

MODULES = "modules.json"
_MODES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "Identity": nn.Identity,
    "Tanh": nn.Tanh,
    "GELU": nn.GELU,
    "ReLU": nn.ReLU,
}


class SentenceEncoder(nn.Module):
    """An encoder whose hidden states are pooled to one vector for each text.

    Args:
        encoder: A bare model of transformers.
        pooling: ``"mean"`` of the tokens, ``"cls"`` (the first), ``"max"`` or ``"last"``.
        head: What the vector passes afterwards; nothing if left out.
    """

    main_input_name = "input_ids"

    def __init__(
        self, encoder: nn.Module, pooling: str = "mean", head: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.encoder, self.pooling = encoder, pooling
        self.head = nn.Identity() if head is None else head

    @property
    def config(self) -> Any:
        """The configuration of the encoder."""
        return self.encoder.config

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **more: Tensor
    ) -> Tensor:
        """The vectors of texts, (batch, width)."""
        returned = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **more)
        hidden = returned.last_hidden_state
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        vectors: Tensor = self.head(_pool(hidden, attention_mask, self.pooling))
        return vectors


def _pool(hidden: Tensor, mask: Tensor, how: str) -> Tensor:
    """Pool hidden states, (batch, tokens, width), over the tokens that are no padding."""
    rows = torch.arange(len(hidden), device=hidden.device)
    if how in ("cls", "last"):
        # Texts may be padded at either end.
        places = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
        far = mask.shape[1] if how == "cls" else -1
        real = places.masked_fill(mask == 0, far)
        at = real.min(1).values if how == "cls" else real.max(1).values
        return hidden[rows, at]
    if how == "max":
        return hidden.masked_fill(mask[..., None] == 0, -torch.inf).max(1).values
    weights = mask[..., None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


def read_modules(file: Path, read: Callable[[str], Path]) -> tuple[str, str, nn.Module | None]:
    """Read the parts of an encoder as sentence-transformers saves them.

    Args:
        file: modules.json.
        read: Finds another file of the model, by its path.

    Returns:
        The folder of the encoder, the pooling, and what the vector passes afterwards.

    Raises:
        WhenceError: There is a part that whence does not know.
    """
    folder, pooling, layers = "", "mean", list[nn.Module]()
    try:
        for part in json.loads(file.read_text(encoding="utf-8")):
            kind, path = str(part["type"]).rpartition(".")[2], str(part["path"])
            if kind == "Transformer":
                folder = path
            elif kind == "Pooling":
                pooling = _read_pooling(read(f"{path}/config.json"))
            elif kind == "Dense":
                config = _read_json(read(f"{path}/config.json"))
                layers.append(_build_dense(config, read(f"{path}/model.safetensors")))
            elif kind != "Normalize":  # of which a cosine knows nothing
                raise WhenceError(f"The encoder has a part that whence does not know: {kind}.")
    except (OSError, ValueError, LookupError, TypeError) as error:
        if isinstance(error, WhenceError):
            raise
        raise WhenceError(f"'{file}' is not as sentence-transformers writes it.") from error
    return folder, pooling, nn.Sequential(*layers) if layers else None


def _read_json(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def _read_pooling(file: Path) -> str:
    config = _read_json(file)
    named = config.get("pooling_mode")  # as newer releases write it
    modes = [named] if isinstance(named, str) else [m for m in config if config[m] is True]
    modes = [_MODES.get(mode, mode) for mode in modes if mode != "include_prompt"]
    modes = ["last" if mode == "lasttoken" else mode for mode in modes]
    if len(modes) != 1 or modes[0] not in _MODES.values():
        raise WhenceError(
            f"The encoder pools tokens by {', '.join(modes) or 'nothing'}, and whence knows one of "
            f"{', '.join(_MODES.values())}."
        )
    return modes[0]


def _build_dense(config: Mapping[str, Any], weights: Path) -> nn.Module:
    """A linear layer and its activation, with the weights of a safetensors file."""
    bias = bool(config.get("bias", True))
    linear = nn.Linear(int(config["in_features"]), int(config["out_features"]), bias)
    name = str(config.get("activation_function", "Identity")).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise WhenceError(f"The encoder has an activation that whence does not know: {name}.")
    state = {key.removeprefix("linear."): x.float() for key, x in load_file(weights).items()}
    linear.load_state_dict(state)
    return nn.Sequential(linear, _ACTIVATIONS[name]())


@dataclass
class SentenceModel(PairModel):
    """An encoder of sentences, which compares texts with texts by the cosine of their vectors."""

    @override
    @cached_property
    def explainer(self) -> Explainer:
        """The Explainer of all batches."""
        precision: Any = self.precision
        return Explainer(self.model, tokenizer=self.tokenizer, precision=precision)

    @override
    def run(self, inputs: BatchInputs) -> Any:
        """Run the model on texts, and return their cosines with the texts that are named."""
        self._require_texts()
        return F.normalize(super().run(inputs), dim=1) @ self._vectors.T

    @cached_property
    def _vectors(self) -> Tensor:
        """The vectors of the texts, (texts, width), of length 1."""
        return self._compute_embeddings(self._encoded_texts)

    @torch.no_grad()
    def _compute_embeddings(self, prepared: PreparedBatch) -> Tensor:
        inputs: Any = prepared.inputs
        return F.normalize(self.model(**inputs), dim=1)

    @override
    def _compare(self, prepared: PreparedBatch, request: Mapping[str, Any]) -> Compared:
        asked = dict(request)
        target, against, classes = (asked.pop(n, None) for n in ("target", "against", "classes"))
        wanted = parse_targets(target, against, classes, generates=False)
        if not isinstance(wanted, AskedClasses):
            raise WhenceError("An encoder is asked for texts, by name or index; see texts=[...].")
        own, others = self._compute_embeddings(prepared), self._vectors
        cosines = own @ others.T
        indices = wanted.resolve_classes(cosines, self.class_names)
        if against is not None:
            less = wanted.resolve_against(cosines, self.class_names)[:, 0]
            wanted.resolve(cosines, self.class_names)  # which refuses a text against itself
            asked["against"] = similarity(others[less])
        columns = [similarity(others[column]) for column in indices.T]
        asked |= {"target": columns[0]} if wanted.is_one else {"classes": columns}
        explanation: Explanation = self.explainer.explain(prepared.inputs, **asked)
        names = [[self.class_names[index] for index in row] for row in indices.tolist()]
        if against is not None:
            pairs = zip(names, less.tolist(), strict=True)
            names = [[join_names(one, self.class_names[b]) for one in row] for row, b in pairs]
        explanation.target = indices[:, 0] if wanted.is_one else indices
        explanation.target_names = [name for (name,) in names] if wanted.is_one else names
        explanation.logits = cosines  # which take the place of logits: the highest is the decision
        return Compared(explanation, cosines, "cosine", [similarity(one) for one in own])

    @override
    def _join(self, encoded: BatchInputs, prepared: PreparedBatch) -> Mapping[str, Any]:
        assert not isinstance(encoded, Tensor)
        return encoded
