"""What a request's targets need to know: the inputs, their tokens, and how to run the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.inputs.arguments import ModelArguments, is_text
from whence.targets import AskedScalars, TargetContext, TokenSequence
from whence.tracing import copy_arguments, replicate, unwrap_model
from whence.tracing.logits import find_logits

if TYPE_CHECKING:
    from whence.engine.request import Request, Subject


def is_generative(subject: Subject) -> bool:
    """Whether a model generates text, and what it returns is read as it is."""
    can_generate = getattr(unwrap_model(subject.model), "can_generate", None)
    return subject.output is None and callable(can_generate) and bool(can_generate())


def leave_out_cache(request: Request) -> dict[str, bool]:
    """The argument that asks a language model for no cache of keys and values, which nobody reads.

    It has no influence on the logits of transformers' own decoders. Encoder-decoders are not asked,
    of which one (FSMT) masks what comes later only without a cache; nor are other classes. Models
    keep one unless they are asked not to: copies of all keys and values, in objects that
    every block is given.
    """
    subject, given = request.subject, request.arguments.kwargs
    asked = isinstance(request.asked, AskedScalars) and request.asked.reads_logits_alone
    if not asked or not is_generative(subject) or {"use_cache", "past_key_values"} & given.keys():
        return {}
    model = unwrap_model(subject.model)
    forward = type(model).forward
    is_own = forward.__module__.startswith("transformers.") and "forward" not in vars(model)
    is_decoder = not getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    can_be_asked = is_own and is_decoder and "use_cache" in _list_parameters(forward)
    return {"use_cache": False} if can_be_asked else {}


@lru_cache(256)
def _list_parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def make_context(request: Request) -> TargetContext:
    """What targets may know of a request's model and inputs."""
    subject, arguments = request.subject, request.arguments
    return TargetContext(
        batch=request.batch,
        find_logits=subject.output or find_logits,
        select_inputs=_InputSelector(request),
        run=lambda inputs: _run(subject, inputs),
        sequences=_list_sequences(arguments),
        class_names=subject.class_names,
        tokenizer=subject.tokenizer,  # type: ignore[arg-type]  # more of the same object
        generates=is_generative(subject),
        explains_text=is_text(arguments.main_at, arguments.main),
        output_stated=subject.output is not None,
        keeps_logits="token_logits" in request.method.needs,
    )


def _list_sequences(arguments: ModelArguments) -> list[TokenSequence]:
    """The token sequences of a model's arguments, the one that is decoded first."""
    named = arguments.named_tensors
    sequences = []
    for start in ("decoder_", ""):
        mask = named.get(f"{start}attention_mask")
        ids = named.get(f"{start}input_ids")
        if ids is None and not start and not arguments.main.is_floating_point():
            ids = arguments.main
        embeddings = named.get(f"{start}inputs_embeds")
        shape = next((x.shape[:2] for x in (ids, embeddings, mask) if x is not None), None)
        if shape is None or len(shape) != 2:
            continue
        if mask is None or mask.dim() != 2 or mask.shape[1] != shape[1]:
            mask = torch.ones(shape, dtype=torch.bool)
        sequences.append(TokenSequence(mask.bool().expand(shape), ids))
    return sequences


class _InputSelector:
    """Gives the inputs of some samples, as the user gave them."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def __call__(self, samples: Tensor) -> Any:
        request = self._request
        arguments = request.arguments
        if samples.tolist() != list(range(request.batch)):
            cuttable = request.make_cuttable()
            if cuttable is None:
                raise RuntimeError("Rows were run apart that cannot be.")
            arguments = cuttable.arguments.select_rows(samples)
        return arguments.args[0] if arguments.args else dict(arguments.kwargs)


@torch.no_grad()
def _run(subject: Subject, inputs: Any) -> Any:
    """What the model returns for other inputs."""
    arguments = ModelArguments.from_inputs(inputs, subject.model)
    args, kwargs = copy_arguments(arguments.args, arguments.kwargs)
    return replicate(subject.model)(*args, **kwargs)
