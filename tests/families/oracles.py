"""Oracles for causal language models: methods written plainly over a model's own runs."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tests.families.formulas import Plain, center, compute_scores
from tests.families.models import LAYERS
from tests.families.modified_gradients import modify_gradients

STEPS = 8


class Oracle:
    """Scores of one text by the definitions of methods.

    Args:
        model: A model with attention in the open.
        ids: (1, tokens).
        scalar: The explained scalar, of the model's logits, (tokens, vocabulary).
        read: How much each position is read, which sums to 1.
        branch_norm: The name of the norm that the attention's output passes before it is added.
    """

    def __init__(
        self,
        model: Any,
        ids: Tensor,
        scalar: Callable[[Tensor], Tensor],
        read: dict[int, float],
        branch_norm: str = "",
    ) -> None:
        self._model, self._branch_norm = model.requires_grad_(False), branch_norm
        self._ids, self._scalar, self._read = ids, scalar, read
        self._embeddings = model.get_input_embeddings()(ids).detach()
        self._tokens = ids.shape[1]
        layers = (m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == LAYERS)
        self._layers = list(next(layers))

    def run(self, embeddings: Tensor | None = None, **options: Any) -> Any:
        """Run the model, perhaps with other embeddings than its own."""
        embeddings = self._embeddings if embeddings is None else embeddings
        module = self._model.get_input_embeddings()
        # A copy, since some models write to it.
        hook = module.register_forward_hook(lambda *_: embeddings.clone())
        try:
            return self._model(self._ids, use_cache=False, **options)
        finally:
            hook.remove()

    def compute_logit(self, embeddings: Tensor | None = None) -> Tensor:
        """The explained scalar."""
        return self._scalar(self.run(embeddings).logits[0])

    def compute_scores(self, method: str, relevance: list[Tensor] | None = None) -> Tensor:
        """The scores of all tokens; `tiba` takes the relevance of the maps."""
        own = {
            "attnlrp": lambda: compute_scores("input_x_gradient", self._run_plain("attnlrp")),
            "whence": lambda: compute_scores("whence", self._run_plain("balanced")),
            "integrated_gradients": self._integrate,
            "occlusion": self._cover,
            "value_zeroing": self._zero_values,
            "attention_norm": self._compute_norms,
        }
        if method in own:
            return own[method]()
        return compute_scores(method, self._run_plain(), relevance)

    def _run_plain(self, rules: str | None = None) -> Plain:
        leaf = self._embeddings.clone().requires_grad_()
        held = modify_gradients(self._model, rules, self._tokens) if rules else None
        with held or contextlib.nullcontext():
            output = self.run(leaf, output_attentions=True, output_hidden_states=True)
            logit = self._scalar(output.logits[0])
            centered = self._scalar(center(output.logits[0]))
        maps = list(output.attentions)
        return Plain(
            logit=logit,
            centered=centered,
            maps=maps,
            hidden=list(output.hidden_states[: len(maps)]),
            inputs=leaf,
            read=self._read,
            units=list(range(self._tokens)),
        )

    def _integrate(self) -> Tensor:
        points, weights = np.polynomial.legendre.leggauss(STEPS)
        total = torch.zeros_like(self._embeddings)
        for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
            leaf = (self._embeddings * point).requires_grad_()
            total += torch.autograd.grad(self.compute_logit(leaf), leaf)[0] * weight
        return (total * self._embeddings)[0].sum(-1)

    def _cover(self) -> Tensor:
        whole, drops = self.compute_logit(), []
        for token in range(self._tokens):
            covered = self._embeddings.clone()
            covered[0, token] = 0
            drops.append(whole - self.compute_logit(covered))
        return torch.stack(drops)

    # Values ---------------------------------------------------------------------------------------

    def _run_layer(self, module: nn.Module, layer: int, kept: list[bool]) -> Tensor:
        """What a module puts out, (tokens, width), with the values of some tokens in a layer."""
        outputs: list[Any] = []
        hook = module.register_forward_hook(lambda _m, _a, output: outputs.append(output))
        try:
            with _KeepValues(layer, torch.tensor(kept)):
                self.run()
        finally:
            hook.remove()
        output = outputs[0][0] if isinstance(outputs[0], tuple) else outputs[0]
        return output.reshape(self._tokens, -1)

    def _zero_values(self) -> Tensor:
        """The product over layers of 1 - cos of outputs with and without a token's value."""
        product = self._read_rows()
        every = [True] * self._tokens
        for number in reversed(range(len(self._layers))):
            module = self._layers[number]
            whole = self._run_layer(module, number, every)
            changed = [
                self._run_layer(module, number, [*every[:j], False, *every[j + 1 :]])
                for j in range(self._tokens)
            ]
            distances = [1 - F.cosine_similarity(one, whole, dim=-1) for one in changed]
            matrix = torch.stack(distances, 1)
            product = product @ (matrix / matrix.sum(-1, keepdim=True))
        return product

    def _compute_norms(self) -> Tensor:
        """The rollout of norms of what each token's value alone adds to each token."""
        product, identity = self._read_rows(), torch.eye(self._tokens).double()
        none = [False] * self._tokens
        for number in reversed(range(len(self._layers))):
            layer = self._layers[number]
            module = next(m for m in layer.modules() if "Attention" in type(m).__name__)
            nothing = self._run_layer(module, number, none)
            scale: Tensor | float = 1.0
            if self._branch_norm:  # each token's own denominator, and the weight
                whole = self._run_layer(module, number, [True] * self._tokens)
                scale = getattr(layer, self._branch_norm)(whole) / whole
            alone = [
                self._run_layer(module, number, [*none[:j], True, *none[j + 1 :]]) - nothing
                for j in range(self._tokens)
            ]
            matrix = torch.stack([(one * scale).norm(dim=-1) for one in alone], 1)
            matrix = matrix / matrix.sum(-1, keepdim=True)
            product = product @ (identity + matrix) / 2
        return product

    def _read_rows(self) -> Tensor:
        rows = torch.zeros(self._tokens).double()
        for position, weight in self._read.items():
            rows[position] = weight
        return rows


class _KeepValues(TorchFunctionMode):
    """Keeps the values of some tokens, and zeros of others, in one attention of a model."""

    def __init__(self, layer: int, kept: Tensor) -> None:
        super().__init__()
        self._layer, self._kept, self._seen = layer, kept, 0

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        tokens = len(self._kept)
        if getattr(func, "__name__", "") in ("matmul", "bmm", "__matmul__"):
            weights, values = args[:2]
            # No head is as wide as the text is long.
            if weights.shape[-2:] == (tokens, tokens) and values.shape[-2] == tokens:
                if self._seen == self._layer:
                    args = weights, values * self._kept[:, None]
                self._seen += 1
        return func(*args, **(kwargs or {}))
