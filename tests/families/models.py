"""Small random models of transformers and timm in float64, and what they return themselves."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.families.formulas import METHODS, Plain, compute_scores
from whence import Explainer, WhenceError

WIDTH, HEADS, LAYERS, WORDS = 16, 2, 2, 40
TEXT = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 24,
    "vocab_size": WORDS,
    "max_position_embeddings": 32,
}
SEED = 5


def build_transformers(name: str, config: str, attention: str | None = None, **sizes: Any) -> Any:
    """Build a model of transformers by the names of its class and of its configuration."""
    transformers = pytest.importorskip("transformers")
    options = {} if attention is None else {"attn_implementation": attention}
    if any("experts" in size for size in sizes):
        options["experts_implementation"] = "eager"
    torch.manual_seed(SEED)
    model = getattr(transformers, name)._from_config(
        getattr(transformers, config)(**sizes), **options
    )
    return enlarge_weights(model)


def enlarge_weights(model: nn.Module, by: float = 0.2) -> nn.Module:
    """Add noise to all weights, so that nothing is nearly zero, and convert to float64."""
    torch.manual_seed(SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * by)
    return model.eval().double()


def copy_eager(model: nn.Module) -> Any:
    """A copy that computes attention in the open, made anew: some models choose when made."""
    with _default_dtype(model.dtype):
        config = copy.deepcopy(model.config)
        eager = type(model)._from_config(config, attn_implementation="eager")
    eager.load_state_dict(model.state_dict())
    return eager.eval()


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def make_ids(batch: int = 2, length: int = 7) -> Tensor:
    return torch.randint(5, WORDS, (batch, length), generator=torch.Generator().manual_seed(SEED))


def make_pixels(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(SEED)).double()


@contextlib.contextmanager
def replace_embeddings(model: Any) -> Iterator[list[Tensor]]:
    """Make each embedding of words that a model computes a leaf; the list gets the leaves."""
    leaves: list[Tensor] = []

    def replace(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    words = model.get_input_embeddings().weight
    sharing = [m for m in model.modules() if isinstance(m, nn.Embedding) and m.weight is words]
    hooks = [module.register_forward_hook(replace) for module in sharing]
    try:
        yield leaves
    finally:
        for hook in hooks:
            hook.remove()


def check_scores(
    explainer: Explainer,
    inputs: Any,
    plains: Sequence[Callable[[int], Plain]],
    target: int | list[int] = 1,
    methods: Sequence[str] = METHODS,
    tolerance: float = 1e-4,
    refused: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Check the scores of methods against formulas over what the model itself returns.

    Args:
        explainer: Explains the model.
        inputs: A batch.
        plains: For each sample, what the model itself gives for a class.
        target: The explained class, or one for each sample.
        methods: Names of methods.
        tolerance: The largest error; some models of transformers compute norms in float32.
        refused: Parts of the error of the methods that refuse.
        **options: More of `explain`.
    """
    targets = target if isinstance(target, list) else [target] * len(plains)
    failed = []
    for method in methods:
        more = {"gradients": "plain"} if method == "whence" else {}
        explain = partial(explainer.explain, inputs, target, method=method, **more, **options)
        if refused and method in refused:
            with pytest.raises(WhenceError, match=refused[method]):
                explain()
            continue
        result = explain(keep_evidence=method == "tiba")
        for sample, (plain, wanted) in enumerate(zip(plains, targets, strict=True)):
            own = plain(wanted)
            relevance = None
            if method == "tiba":
                maps = result.evidence.relevance
                sizes = [one.shape for one in own.join_heads(own.maps)]
                assert len(maps) == len(sizes), "other attention than the target depends on"
                pairs = zip(maps, sizes, strict=True)
                relevance = [one[sample][..., : size[1], : size[2]] for one, size in pairs]
            expected = compute_scores(method, own, relevance)
            found = result.scores[sample].flatten()
            error = abs(result.logits[sample, wanted].item() / own.logit.item() - 1)
            assert error < tolerance, f"{method}: the logit is off by {error}"
            assert expected.abs().max() > 0, method
            padding, found = found[len(expected) :], found[: len(expected)]
            assert not padding.any(), f"{method}: padding has a score"
            assert found.shape == expected.shape, (method, found.shape, expected.shape)
            error = float((found - expected).abs().max() / expected.abs().max())
            if not error < tolerance:
                failed.append(f"{method}, sample {sample}: off by {error:.1e}")
    assert not failed, failed
