"""What is maximised: a class logit, or a number read inside of the model."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from whence.errors import WhenceError
from whence.targets import find_class_index
from whence.tracing.graph.blocks import find_blocks
from whence.tracing.recorder import Edit, Run
from whence.tracing.replica import replicate
from whence.tracing.trace import Trace, find_logits, trace

# From pixels as the model takes them, (1, 3, height, width), to a number.
Number = Callable[[Tensor], Tensor]
Output = Callable[[Any], Tensor] | None


@dataclass(frozen=True)
class Objective:
    """What is maximised.

    Attributes:
        number: Computes it, from pixels as the model takes them.
        scale: How large it is at the start: priors are weighed against a share of it.
    """

    number: Number
    scale: float = 1.0


@dataclass(frozen=True)
class _Inside:
    """A place inside of a model, told by whole numbers."""

    layer: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise WhenceError(
                    f"{type(self).__name__}({field.name}=...) is a whole number, not {value!r}."
                )


@dataclass(frozen=True)
class Unit(_Inside):
    """One channel of the hidden states, averaged over all tokens.

    Attributes:
        layer: Hidden states that enter this layer, counted from 0; the number of layers stands for
            those that leave the last. Negative numbers count from the end.
        index: Which channel.
    """

    index: int


@dataclass(frozen=True)
class Token(_Inside):
    """The hidden state of one token: the mean of its squares.

    Attributes:
        layer: As for `Unit`.
        position: Which token, prefix tokens such as [CLS] included.
    """

    position: int


@dataclass(frozen=True)
class Head(_Inside):
    """What one attention head reads, attention times values: the mean of its squares.

    Attributes:
        layer: Which attention layer, counted from 0.
        head: Which head.
    """

    head: int


def class_objective(model: nn.Module, index: int, output: Output = None) -> Objective:
    """The logit of a class."""
    stand_in = replicate(model)
    return Objective(lambda inputs: logits_of(stand_in(inputs), output)[0, index])


def find_class(
    model: nn.Module, target: Any, names: Mapping[int, str], start: Tensor, output: Output = None
) -> int:
    """The index of a class that is given by index or name.

    Raises:
        WhenceError: There is no such class.
    """
    return find_class_index(target, names, logits_of(replicate(model)(start), output).shape[1])


def logits_of(returned: Any, output: Output) -> Tensor:
    """The logits, (1, classes), in what a model returned."""
    logits = find_logits(returned) if output is None else output(returned)
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        what = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise WhenceError(
            f"Logits of shape (1, classes) are needed, but the model gave {what}. Pick them with "
            f"output=lambda returned: ..."
        )
    return logits


def inner_objective(
    model: nn.Module, target: Unit | Token | Head, start: Tensor, output: Output = None
) -> Objective:
    """A number inside of the model.

    One recorded pass tells where it is; further passes meet it there, while they run.

    Args:
        model: The model, which is not touched.
        target: What to read.
        start: Any input, (1, 3, height, width).
        output: Gets the logits from what the model returns.

    Raises:
        WhenceError: The model has no such layer, channel, token or head.
    """
    traced = trace(model, (start,), {}, 0, output)
    if isinstance(target, Head):
        place, number = _at_head(traced, target)
    else:
        place, number = _at_hidden(traced, target)

    def read(inputs: Tensor) -> Tensor:
        numbers: list[Tensor] = []
        edit = place.edit(lambda value: numbers.append(number(value)))
        followed = inputs if inputs.requires_grad else inputs.detach().requires_grad_()
        run = Run(followed, {place.operation: edit})
        trace(model, (inputs.detach(),), {}, 0, output, run)
        return numbers[-1]

    # Channels have a sign and may cancel; squares do not.
    squares = place.value[..., target.index].square() if isinstance(target, Unit) else None
    scale = number(place.value) if squares is None else squares.mean().sqrt()
    return Objective(read, float(scale) or 1.0)


@dataclass(frozen=True)
class _Place:
    """Somewhere in a forward pass.

    Attributes:
        operation: The index of an operation.
        term: Which of its inputs; None for its output.
        value: What is there at the start; not part of the graph.
    """

    operation: int
    term: int | None
    value: Tensor

    def edit(self, see: Callable[[Tensor], None]) -> Edit:
        """Changes nothing, but shows a copy of the value: the model may write to the value."""

        def output(value: Tensor) -> Tensor:
            see(value.clone())
            return value

        def inputs(*values: Tensor) -> tuple[Tensor, ...]:
            assert self.term is not None
            see(values[self.term].clone())
            return values

        return Edit(output=output) if self.term is None else Edit(inputs=inputs)


def _at_head(traced: Trace, target: Head) -> tuple[_Place, Number]:
    sites = traced.sites
    product = sites[_checked(target.layer, len(sites), "attention layer", "The model")].product
    # With one sample, whatever stands before tokens and width are heads.
    heads = product.output[..., 0, 0].numel()
    head = _checked(target.head, heads, "head", f"Layer {target.layer}")
    place = _Place(product.index, None, product.output)
    return place, lambda attended: attended.reshape(heads, -1)[head].square().mean()


def _at_hidden(traced: Trace, target: Unit | Token) -> tuple[_Place, Number]:
    blocks = find_blocks(traced)
    depth = len(blocks)
    layer = _checked(target.layer, depth + 1, "hidden state", "The model")
    block = blocks[min(layer, depth - 1)]
    if layer == depth:
        place = _Place(block.leaving.index, None, block.leaving.output)
    else:
        term = int(block.entering is block.joined.b)
        place = _Place(block.joined.index, term, block.entering)
    tokens, width = block.site.tokens, place.value.shape[-1]
    if place.value.numel() != tokens * width:
        raise WhenceError(
            f"Hidden states of shape {tuple(place.value.shape)} around {block.site.where} are not "
            f"those of {tokens} tokens."
        )
    owner = f"The hidden state of layer {target.layer}"
    if isinstance(target, Unit):
        channel = _checked(target.index, width, "channel", owner)
        return place, lambda hidden: hidden[..., channel].mean()
    position = _checked(target.position, tokens, "token", owner)
    return place, lambda hidden: hidden.reshape(tokens, width)[position].square().mean()


def _checked(given: int, count: int, what: str, owner: str) -> int:
    """A number that counts from 0 on, or from the end if it is negative."""
    try:
        return range(count)[operator.index(given)]
    except IndexError:
        raise WhenceError(
            f"{owner} has {count} {what}s, 0 to {count - 1}; there is no {given}."
        ) from None
