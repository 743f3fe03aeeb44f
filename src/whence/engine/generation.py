"""Generate text with a language model, and make the explanation of all of it a Generation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from whence import targets
from whence._util.text import first_line
from whence.engine.prompt_images import PromptImages
from whence.errors import WhenceError
from whence.explanation import Explanation, Explanations, Generation
from whence.targets import Target
from whence.tracing import unwrap_model
from whence.tracing.stand_in import replicate

# Arguments of a model that hold one value for each token, and follow from the ids.
_OF_TOKENS = ("attention_mask", "token_type_ids", "position_ids")


@dataclass(frozen=True)
class GeneratedSequences:
    """Prompts with what a model generated after them.

    Attributes:
        ids: (batch, tokens), prompts and outputs, padded at the end.
        mask: (batch, tokens), 1 where a token is no padding.
        prompt_lengths: (batch,), the number of tokens of each prompt.
        lengths: (batch,), the number of tokens with the output.
        others: Further arguments of the model, as the user gave them.
    """

    ids: Tensor
    mask: Tensor
    prompt_lengths: Tensor
    lengths: Tensor
    others: Mapping[str, Any]

    @property
    def inputs(self) -> dict[str, Any]:
        """Everything as the model takes it."""
        inputs = {"input_ids": self.ids, **self.others}
        return inputs if bool(self.mask.all()) else {**inputs, "attention_mask": self.mask}

    @property
    def positions(self) -> Tensor:
        """(batch, steps), where each generated token stands; -1 where an output is shorter."""
        steps = torch.arange(int((self.lengths - self.prompt_lengths).max()))
        at = self.prompt_lengths[:, None] + steps
        return torch.where(at < self.lengths[:, None], at, -1)

    def list_targets(self) -> list[Target]:
        """One target for each step: the generated token, which the position before it tells."""
        last = (self.lengths - 1)[:, None]  # stands in where an output is shorter
        positions = self.positions
        positions = torch.where(positions < 0, last, positions)
        ids = self.ids.cpu().gather(1, positions)
        return [
            targets.token((at - 1).tolist(), of.tolist(), self.prompt_lengths.tolist())
            for at, of in zip(positions.T, ids.T, strict=True)
        ]

    def make_generation(self, explanation: Explanation) -> Generation:
        """Make a Generation of the explanation of these targets."""
        positions = self.positions
        whole = self.leave_out_missing(explanation)
        before = torch.arange(whole.scores.shape[-1]) < positions[..., None]
        whole = dataclasses.replace(whole, scores=whole.scores * before.to(whole.scores.device))
        return Generation.from_explanation(whole, positions, self.prompt_lengths)

    def make_generations(self, explanations: Explanations) -> Explanations:
        """The same for several inputs: a Generation of the words, and maps of images."""
        change = {"input_ids": self.make_generation}
        return Explanations(
            (name, change.get(name, self.leave_out_missing)(one))
            for name, one in explanations.items()
        )

    def leave_out_missing(self, explanation: Explanation) -> Explanation:
        """The explanation of these targets, without those that a shorter output does not have."""
        positions = self.positions
        scores, device = explanation.scores, explanation.scores.device
        is_there = (positions >= 0).to(device)
        names = explanation.target_names
        if names is not None:
            names = [
                [name if at >= 0 else "" for name, at in zip(*row, strict=True)]
                for row in zip(names, positions.tolist(), strict=True)
            ]
        known: dict[str, Any] = {
            name: torch.where(is_there.to(value.device), value, torch.nan)
            for name in ("values", "probabilities")
            if (value := getattr(explanation, name)) is not None
        }
        return dataclasses.replace(
            explanation,
            scores=scores * is_there[..., None],
            target=torch.where(is_there, explanation.target, -1),
            target_names=names,
            **known,
        )


def generate_sequences(
    model: nn.Module, inputs: Tensor | Mapping[str, Any], max_new_tokens: int, **options: Any
) -> GeneratedSequences:
    """Let a model generate text after prompts; greedily, unless the options say otherwise.

    Args:
        model: A causal language model of transformers. It is left as it was found.
        inputs: Token ids, or a mapping with ``input_ids``, padded at either end.
        max_new_tokens: How many tokens to generate at most.
        **options: Those of the model's own ``generate``.

    Raises:
        WhenceError: The model does not generate, or the prompts do not suit it.
    """
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int):
        raise WhenceError(f"max_new_tokens is a whole number, not {max_new_tokens!r}.")
    if max_new_tokens < 1:
        raise WhenceError(f"At least one token is generated, not {max_new_tokens}.")
    inner = unwrap_model(model)
    _check_generates(inner)
    prompts, others = _split_inputs(inputs)
    _check_room(inner, prompts, max_new_tokens)
    held = dict(inputs) if isinstance(inputs, Mapping) else {"input_ids": inputs}
    held.setdefault("attention_mask", torch.ones_like(held["input_ids"]))
    images = PromptImages.find(inner, held)
    settings: Any = inner.generation_config
    ends = _list_ids(options.get("eos_token_id", settings.eos_token_id))
    padding = options.pop("pad_token_id", settings.pad_token_id)
    padding = padding if padding is not None else next(iter(ends), 0)
    options = {"do_sample": False, **options, "pad_token_id": padding}
    options["max_new_tokens"] = max_new_tokens
    generated = _generate_by_length(replicate(inner), prompts, images or others, options)
    prompts = [one.prompt for one in generated]
    outputs = [_cut_at_end(one.output, ends) for one in generated]
    if not all(map(len, outputs)):
        raise WhenceError("The model generated nothing after one of the prompts.")
    rows = [torch.cat(parts) for parts in zip(prompts, outputs, strict=True)]
    ids = pad_sequence(rows, True, padding)
    mask, starts = (
        pad_sequence([torch.ones_like(row) for row in rows], True, 0),
        list(map(len, prompts)),
    )
    if images is not None:
        logits = [one.logits[: len(row)] for row, one in zip(outputs, generated, strict=True)]
        words = {"input_ids": ids, "attention_mask": mask}
        others = images.find_arguments(replicate(inner), words, starts, logits)
    return GeneratedSequences(
        ids=ids,
        mask=mask,
        prompt_lengths=torch.tensor(starts),
        lengths=torch.tensor(list(map(len, rows))),
        others=others,
    )


def _check_generates(model: nn.Module) -> None:
    config = getattr(model, "config", None)
    can_generate = getattr(model, "can_generate", None)
    if config is None or can_generate is None or not can_generate():
        raise WhenceError(
            f"{type(model).__name__} does not generate text: that needs a causal language model of "
            f"transformers, such as AutoModelForCausalLM.from_pretrained(name)."
        )
    if getattr(config, "is_encoder_decoder", False):
        raise WhenceError(
            f"{type(model).__name__} reads the prompt with an encoder. explain_generation is for "
            f"models that read prompt and output as one text; explain one output token with "
            f"explain(inputs, target=...)."
        )


def _split_inputs(inputs: Tensor | Mapping[str, Any]) -> tuple[list[Tensor], dict[str, Any]]:
    """The ids of each prompt without padding, and the other arguments."""
    held = dict(inputs) if isinstance(inputs, Mapping) else {"input_ids": inputs}
    ids = held.pop("input_ids", None)
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point():
        raise WhenceError(
            "Prompts are token ids, (batch, tokens), or a mapping with 'input_ids', as a tokenizer "
            "returns with return_tensors='pt'."
        )
    mask = held.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask
    prompts = [row[real.bool()] for row, real in zip(ids, mask, strict=True)]
    if not prompts or not all(map(len, prompts)):
        raise WhenceError("A prompt is empty: it has no tokens.")
    return prompts, {name: value for name, value in held.items() if name not in _OF_TOKENS}


def _check_room(model: nn.Module, prompts: Sequence[Tensor], count: int) -> None:
    """Refuse prompts that leave no room in the model's context."""
    config: Any = model.config
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    limit, longest = getattr(config, "max_position_embeddings", None), max(map(len, prompts))
    if isinstance(limit, int) and limit > 0 and longest + count > limit:
        room = limit - longest
        help_ = f"generate at most {room}" if room > 0 else "shorten the prompt"
        raise WhenceError(
            f"The prompt has {longest} tokens, and {count} are to be generated, but the model has "
            f"positions for {limit}: {help_}."
        )


class _Generated(NamedTuple):
    """What a model generated after a prompt, and by which logits, which are empty without images.

    The prompt is as the model read it: BLIP leaves out its last token.
    """

    prompt: Tensor
    output: Tensor
    logits: Tensor


def _generate_by_length(
    model: nn.Module,
    prompts: Sequence[Tensor],
    others: Mapping[str, Any] | PromptImages,
    options: dict[str, Any],
) -> list[_Generated]:
    """What a model generates after each prompt; those of one length together.

    So none is padded, which some models do not stand.
    """
    outputs: dict[int, _Generated] = {}
    if isinstance(others, PromptImages):
        options = {**options, "output_logits": True, "return_dict_in_generate": True}
    for length in dict.fromkeys(map(len, prompts)):
        chosen = [n for n, prompt in enumerate(prompts) if len(prompt) == length]
        ids = torch.stack([prompts[n] for n in chosen])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if isinstance(others, PromptImages):
            inputs |= others.select(chosen)
        else:
            for name, value in others.items():
                has_rows = isinstance(value, Tensor) and len(value) == len(prompts)
                inputs[name] = value[chosen] if has_rows else value
        returned, logits = _generate(model, inputs, options)
        if returned.dim() != 2 or len(returned) != len(chosen):
            raise WhenceError(
                f"The model generated {len(returned)} texts for {len(chosen)} prompt(s); one for "
                f"each can be explained."
            )
        start = returned.shape[1] - logits.shape[1] if logits.shape[1] else length
        texts = map(_Generated, returned[:, :start], returned[:, start:], logits)
        outputs |= dict(zip(chosen, texts, strict=True))
    return [outputs[n] for n in range(len(prompts))]


def _generate(
    model: nn.Module, inputs: dict[str, Any], options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """What a model generates, with the prompts before it, and by which logits, if they are kept."""
    device = inputs["input_ids"].device.type
    try:
        with torch.no_grad(), torch.autocast(device, enabled=False):
            returned = model.generate(**inputs, **options)  # type: ignore[operator]
    except (TypeError, ValueError) as error:
        if "values for keyword argument 'pad_token_id'" in str(error):  # it knows its own
            known = {name: x for name, x in options.items() if name != "pad_token_id"}
            return _generate(model, inputs, known)
        raise WhenceError(f"The model cannot generate so: {first_line(error)}.") from error
    sequences: Tensor = getattr(returned, "sequences", returned)
    steps = getattr(returned, "logits", None)
    logits = torch.stack(steps, 1) if steps else torch.empty(len(sequences), 0)
    return sequences, logits


def _list_ids(ids: Any) -> list[int]:
    if ids is None:
        return []
    return [int(one) for one in (ids if isinstance(ids, Sequence) else [ids])]


def _cut_at_end(row: Tensor, ends: Sequence[int]) -> Tensor:
    """An output up to the token that ended it, which belongs to it."""
    found = torch.isin(row, torch.tensor(ends, dtype=row.dtype, device=row.device)).nonzero()
    return row[: int(found[0, 0]) + 1] if len(found) else row
