"""Objectives of activation maximization: a class logit, a channel, a token or a head."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from torch import Tensor, nn

from whence.errors import WhenceError
from whence.tracing import Edit, Intervention, Trace, find_logits, record, replicate
from whence.tracing.graph import find_blocks

# From pixels as the model takes them, or from an inner activation, to a scalar.
ScalarFunction = Callable[[Tensor], Tensor]
Output = Callable[[Any], Tensor] | None


class Objective(NamedTuple):
    """A scalar to maximise, computed from pixels as the model takes them, (1, 3, height, width).

    Penalties are weighed against the value divided by ``scale``, its size at the start.
    """

    compute: ScalarFunction
    scale: float = 1.0


@dataclass(frozen=True)
class InnerTarget:
    """An activation inside of a model, addressed by whole numbers."""

    layer: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise WhenceError(
                    f"{type(self).__name__}({field.name}=...) is a whole number, not {value!r}."
                )


@dataclass(frozen=True)
class Channel(InnerTarget):
    """One channel of the hidden states: its mean over all tokens.

    Attributes:
        layer: Hidden states that enter this layer, counted from 0; the number of layers addresses
            those that leave the last. Negative numbers count from the end.
        index: Which channel.
    """

    index: int


@dataclass(frozen=True)
class Token(InnerTarget):
    """The hidden state of one token: the mean of its squares.

    Attributes:
        layer: As for `Channel`.
        position: Which token, prefix tokens such as [CLS] included.
    """

    position: int


@dataclass(frozen=True)
class Head(InnerTarget):
    """The output of one attention head, attention times values: the mean of its squares.

    Attributes:
        layer: Which attention layer, counted from 0.
        head: Which head.
    """

    head: int


def build_class_objective(model: nn.Module, index: int, output: Output = None) -> Objective:
    """Build the objective that is the logit of a class."""
    replica = replicate(model)
    return Objective(lambda inputs: pick_logits(replica(inputs), output)[0, index])


def pick_logits(returned: object, output: Output) -> Tensor:
    """Pick the logits, (1, classes), from a model's return value."""
    logits = find_logits(returned) if output is None else output(returned)
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        what = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise WhenceError(
            f"Logits of shape (1, classes) are needed, but the model gave {what}. Pick them with "
            f"output=lambda returned: ..."
        )
    return logits


def build_inner_objective(
    model: nn.Module, target: InnerTarget, start: Tensor, output: Output = None
) -> Objective:
    """Build the objective that is a scalar of one activation inside of the model.

    One recorded pass of any input, (1, 3, height, width), locates the activation; later passes
    read it there as they run.
    """
    traced = record(model, (start,), {}, 0, output)
    activation, reduce = _locate(traced, target)
    address = traced.rerecord(Intervention(finds_addresses=True)).addresses[activation.operation]

    def compute(inputs: Tensor) -> Tensor:
        scalars: list[Tensor] = []
        edit = activation.observe(lambda value: scalars.append(reduce(value)))
        followed = inputs if inputs.requires_grad else inputs.detach().requires_grad_()
        run = Intervention([followed], {address: edit})
        record(model, (inputs.detach(),), {}, 0, output, run)
        return scalars[-1]

    if isinstance(target, Channel):  # a channel has a sign and may cancel; squares do not
        scale = activation.value[..., target.index].square().mean().sqrt()
    else:
        scale = reduce(activation.value)
    return Objective(compute, float(scale) or 1.0)


class _Activation(NamedTuple):
    """The output, or one input, of an operation in a forward pass, with its value at the start."""

    operation: int
    argument: int | None  # None for the output
    value: Tensor

    def observe(self, callback: Callable[[Tensor], None]) -> Edit:
        """Pass a copy of the value on and change nothing: the model may write to the value."""

        def observe_values(*values: Tensor) -> tuple[Tensor, ...]:
            callback(values[self.argument or 0].clone())
            return values

        if self.argument is None:
            return Edit(output=lambda value: observe_values(value)[0])
        return Edit(inputs=observe_values)


def _locate(traced: Trace, target: InnerTarget) -> tuple[_Activation, ScalarFunction]:
    if isinstance(target, Head):
        return _locate_head(traced, target)
    activation, tokens = _locate_hidden_state(traced, target.layer)
    width = activation.value.shape[-1]
    owner = f"The hidden state of layer {target.layer}"
    if isinstance(target, Channel):
        channel = _check_index(target.index, width, "channel", owner)
        return activation, lambda hidden: hidden[..., channel].mean()
    if isinstance(target, Token):
        position = _check_index(target.position, tokens, "token", owner)
        return activation, lambda hidden: hidden.reshape(tokens, width)[position].square().mean()
    raise WhenceError(f"{type(target).__name__} is not a Channel, a Token or a Head.")


def _locate_head(traced: Trace, target: Head) -> tuple[_Activation, ScalarFunction]:
    sites = traced.sites
    product = sites[_check_index(target.layer, len(sites), "attention layer", "The model")].product
    # With one sample, all dimensions before tokens and width are heads.
    heads = product.output[..., 0, 0].numel()
    head = _check_index(target.head, heads, "head", f"Layer {target.layer}")
    activation = _Activation(product.index, None, product.output)
    return activation, lambda attended: attended.reshape(heads, -1)[head].square().mean()


def _locate_hidden_state(traced: Trace, layer: int) -> tuple[_Activation, int]:
    """Locate the hidden states that enter a layer, and count their tokens."""
    blocks = find_blocks(traced)
    depth = len(blocks)
    layer = _check_index(layer, depth + 1, "hidden state", "The model")
    block = blocks[min(layer, depth - 1)]
    if layer == depth:
        activation = _Activation(block.output.index, None, block.output.output)
    else:
        if block.input_reader is None:
            raise WhenceError(f"No operation reads what enters the block of {block.site.where}.")
        activation = _Activation(*block.input_reader, block.input)
    tokens, shape = block.site.key_count, tuple(activation.value.shape)
    if activation.value.numel() != tokens * shape[-1]:
        raise WhenceError(
            f"Hidden states of shape {shape} around {block.site.where} are not those of {tokens} "
            f"tokens."
        )
    return activation, tokens


def _check_index(index: int, count: int, what: str, owner: str) -> int:
    """Convert an index, which counts from the end if it is negative, to one from 0 on."""
    try:
        return range(count)[operator.index(index)]
    except IndexError:
        raise WhenceError(
            f"{owner} has {count} {what}s, 0 to {count - 1}; there is no {index}."
        ) from None
