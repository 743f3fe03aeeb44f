"""Requests as `Explainer.explain` makes them."""

from torch import nn

from tests.tracing.attention_model import AttentionLayer, make_inputs
from whence import methods, rules
from whence.engine.request import Request, Subject
from whence.inputs.arguments import ModelArguments
from whence.layout import Layout
from whence.targets import parse_targets


def make_request(
    inputs=None, model: nn.Module | None = None, method: str = "tiba", **options
) -> Request:
    """A request of a small model; options are those of a request, others of the method."""
    inputs = make_inputs() if inputs is None else inputs
    model = AttentionLayer() if model is None else model
    asked = {"keep_evidence": False, "max_bytes": 2.0**30}
    asked |= {name: options.pop(name) for name in asked.keys() & options.keys()}
    targets = {name: options.pop(name, None) for name in ("target", "against", "classes")}
    return Request(
        subject=Subject(model, {}, None, Layout(), None),
        arguments=ModelArguments.from_inputs(inputs, model),
        rules=rules.get(options.pop("rules", "stable")),
        method=methods.build(method, options),
        method_name=method,
        memory=1.0,
        asked=parse_targets(**targets, generates=False),
        **asked,
    )
