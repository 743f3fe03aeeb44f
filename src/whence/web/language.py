"""Generates text with the page's language models, and says where each word came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from whence import methods, targets
from whence._util.progress import report_progress
from whence._util.text import format_probability
from whence.errors import WhenceError
from whence.explanation import Generation
from whence.models import LoadedModel
from whence.pipeline.generate import TokenCounter, encode_prompt
from whence.render.words import to_label
from whence.targets.vocabulary import name_token
from whence.web.lanes import Pace, enter_slow_lane
from whence.web.limits import (
    MAX_NEW_TOKENS,
    MAX_PROMPT_TOKENS,
    MAX_SLOW_NEW_TOKENS,
    MAX_SLOW_PROMPT_TOKENS,
)
from whence.web.method_cards import is_slow, list_methods
from whence.web.result_cache import ResultCache
from whence.web.service import limit_memory
from whence.web.validation import check_text

# Texts that are kept; each has the logits of all its tokens.
_CACHE_SIZE = 8
# How many tokens that the model might have generated instead are listed.
_OTHERS = 8


@dataclass(frozen=True)
class GeneratedText:
    """A prompt, and the text that a model generated after it."""

    loaded: LoadedModel
    prompt: Tensor  # (1, tokens), ids
    generation: Generation

    def list_tokens(self) -> list[tuple[str, int]]:
        """The generated tokens, each with a name for people and its number."""
        named = enumerate(self.generation.classes())
        return [(f"{n + 1}: {_quote(one.name)} {one.percent}", n) for n, one in named]

    def list_others(self, number: object) -> list[tuple[str, int]]:
        """The most probable other tokens at the place of a generated one: a name and an id."""
        step = self._check_step(number)
        chances = self.generation.logits[0, step].double().softmax(-1)
        chosen, tokenizer = int(self.generation.target[0, step]), self.loaded.tokenizer
        ids = chances.topk(min(_OTHERS + 1, len(chances))).indices.tolist()
        return [
            (f"{_quote(name_token(tokenizer, i))} {format_probability(float(chances[i]))}", i)
            for i in ids
            if i != chosen
        ][:_OTHERS]

    def contrast(self, number: object, other: object, method: str) -> Generation:
        """Explain a generated token rather than another one, which is an id or a text."""
        step = self._check_step(number)
        if isinstance(other, bool) or not isinstance(other, int | str) or other == "":
            raise WhenceError("Choose another token, or type one, that is not there.")
        if is_slow(method):
            enter_slow_lane()
        generation, position = self.generation, self.prompt.shape[1] + step
        chosen = int(generation.target[0, step])
        ids = torch.cat([self.prompt, generation.target[:, : step + 1].to(self.prompt)], 1)
        explanation = self.loaded.explainer.explain(
            {"input_ids": ids},
            classes=[targets.token(position - 1, chosen)],
            against=targets.token(position - 1, self._find_token(other, chosen)),
            method=method,
            memory=limit_memory(self.loaded, method),
        )
        at = torch.tensor([[position]])
        return Generation.from_explanation(explanation, at, torch.tensor([position]))

    def _find_token(self, other: int | str, chosen: int) -> int | str:
        """A token as the model writes it: at the begin of a word, with the space before it."""
        if isinstance(other, int):
            return other
        tokenizer, text = self.loaded.tokenizer, other.strip()
        begins = name_token(tokenizer, chosen).startswith(" ")
        for written in (f" {text}", text) if begins else (text,):
            ids: list[int] = tokenizer.encode(written, add_special_tokens=False)
            if len(ids) == 1:
                return ids[0]
        return other

    def _check_step(self, number: object) -> int:
        steps = self.generation.scores.shape[1]
        if type(number) is not int or not 0 <= number < steps:
            raise WhenceError(f"A generated token is chosen by its number, 1 to {steps}.")
        return number


class LanguageService:
    """The language models that the page offers, and a cache of what they generated."""

    def __init__(self, models: Mapping[str, LoadedModel]) -> None:
        self.models = {name: loaded for name, loaded in models.items() if loaded.generates}
        self._cache, self._pace = ResultCache(_CACHE_SIZE), Pace()

    def generate(
        self,
        model: object,
        prompt: object,
        count: object,
        method: object,
    ) -> GeneratedText:
        """Generate text and explain every token of it.

        Args:
            model: The name of a model.
            prompt: The beginning of the text.
            count: How many tokens to generate at most.
            method: The name of a method.

        Raises:
            WhenceError: There is no such model or method, or the prompt does not suit it.
        """
        if not isinstance(model, str) or model not in self.models:
            raise WhenceError("This page does not offer that language model.")
        loaded, page_input = self.models[model], check_text(prompt)
        tokens, name = _check_count(count), check_method(method)
        key = model, page_input.digest, tokens, name

        def compute() -> GeneratedText:
            with self._pace.measure((model, name), is_slow(name)):
                return _generate(loaded, page_input.text, tokens, name)

        return self._cache.get_or_compute(key, compute)


def check_method(method: object) -> str:
    """Check that a value is the name of a method for texts."""
    found = methods.get(method) and str(method)  # type: ignore[arg-type]  # refuses anything else
    if found not in list_methods("text"):
        raise WhenceError(f"Method '{found}' does not explain texts.")
    return found


def _generate(loaded: LoadedModel, prompt: str, count: int, method: str) -> GeneratedText:
    ids: Tensor = encode_prompt(loaded, prompt)["input_ids"]
    if is_slow(method) and (ids.shape[1] > MAX_SLOW_PROMPT_TOKENS or count > MAX_SLOW_NEW_TOKENS):
        raise WhenceError(
            f"Method '{method}' takes long: on this page it explains at most {MAX_SLOW_NEW_TOKENS} "
            f"generated tokens, after a prompt of at most {MAX_SLOW_PROMPT_TOKENS}."
        )
    if ids.shape[1] > MAX_PROMPT_TOKENS:
        raise WhenceError(
            f"A prompt may have {MAX_PROMPT_TOKENS} tokens on this page; this one has "
            f"{ids.shape[1]:,}."
        )
    done = 0

    def advance(tokens: int) -> None:
        nonlocal done
        done += tokens
        report_progress("Explaining" if done == count else "Generating", done, count)

    memory = limit_memory(loaded, method)
    generation = loaded.explainer.explain_generation(
        {"input_ids": ids}, count, method, memory=memory, streamer=TokenCounter(advance)
    )
    generation.model, generation.model_knows = loaded.title, loaded.knows
    return GeneratedText(loaded, ids, generation)


def _check_count(count: object) -> int:
    is_number = isinstance(count, int | float) and not isinstance(count, bool)
    if not is_number or count not in range(1, MAX_NEW_TOKENS + 1):
        raise WhenceError(f"Generate between one and {MAX_NEW_TOKENS} tokens.")
    return int(count)  # type: ignore[call-overload, no-any-return]


def _quote(text: str) -> str:
    """A token as people can read it: without the space before it, a line break as a sign."""
    return to_label(text).strip() or "␣"
