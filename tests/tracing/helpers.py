"""Recording models with inputs as a user gives them, and reading their attention maps."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from tests.zoo import CASES, build_model
from whence.inputs.arguments import ModelArguments
from whence.tracing import AttentionSite, Intervention, Trace, record
from whence.tracing.ops.base import BackwardRules


def to_double(inputs: Any) -> Any:
    """Inputs in float64; token ids and masks as they are."""
    if isinstance(inputs, Tensor):
        return inputs.double()
    return {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}


def record_inputs(model: nn.Module, inputs: Any, intervention: Intervention | None = None) -> Trace:
    """Record a model with a batch as `Explainer.explain` takes it."""
    given = ModelArguments.from_inputs(inputs, model)
    return record(model, given.args, given.kwargs, given.main_at, None, intervention)


def record_case(name: str, intervention: Intervention | None = None) -> Trace:
    """Record one of the small models in float64."""
    case = CASES[name]
    return record_inputs(build_model(case).double(), to_double(case.inputs()), intervention)


def predicted_classes(trace: Trace) -> Tensor:
    """The class of the highest logit, (batch, 1)."""
    return trace.logits.detach().argmax(1, keepdim=True)


def read_maps(
    trace: Trace,
    classes: Tensor,
    rules: BackwardRules | None = None,
    sites: Sequence[AttentionSite] | None = None,
) -> list[Tensor]:
    """Gradient or relevance at attention maps, (classes, batch, heads, queries, keys) for each."""
    sites = trace.sites if sites is None else sites
    values = trace.read(classes, [site.weights for site in sites], rules)
    return [site.split_heads(value, trace.batch) for site, value in zip(sites, values, strict=True)]
