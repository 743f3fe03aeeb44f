"""Explain text that a model generates, also after images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, overload

from torch import Tensor, nn

from whence import methods
from whence._util.defaults import METHOD
from whence.engine.generation import generate_sequences
from whence.explanation import Explanations, Generation
from whence.rules import RuleSet
from whence.targets import AnyTarget


class GeneratingExplainer(ABC):
    """What explains generated text by explaining its tokens, all in one pass.

    Attributes:
        model: The model.
    """

    model: nn.Module

    @abstractmethod
    def explain(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Say from which parts of each input a decision came."""

    @overload
    def explain_generation(
        self,
        inputs: Tensor | Mapping[str, Any],
        max_new_tokens: int = 20,
        method: str = METHOD,
        rules: str | RuleSet = "stable",
        *,
        of: None = None,
        against: AnyTarget | None = None,
        memory: float | None = None,
        **options: Any,
    ) -> Generation: ...

    @overload
    def explain_generation(
        self,
        inputs: Tensor | Mapping[str, Any],
        max_new_tokens: int = 20,
        method: str = METHOD,
        rules: str | RuleSet = "stable",
        *,
        of: Sequence[str],
        against: AnyTarget | None = None,
        memory: float | None = None,
        **options: Any,
    ) -> Explanations: ...

    def explain_generation(
        self,
        inputs: Tensor | Mapping[str, Any],
        max_new_tokens: int = 20,
        method: str = METHOD,
        rules: str | RuleSet = "stable",
        *,
        of: Sequence[str] | None = None,
        against: AnyTarget | None = None,
        memory: float | None = None,
        **options: Any,
    ) -> Generation | Explanations:
        """Generate text, and say from which parts of prompt and earlier output each token came.

        Args:
            inputs: Prompts: token ids, or what a tokenizer returned; padded at either end.
            max_new_tokens: How many tokens to generate at most; one pass explains them all.
            method: As for `explain`.
            rules: As for `explain`.
            of: Of a model that reads images, the inputs that get scores, such as ``["input_ids",
                "pixel_values"]``; the words if left out.
            against: A token, by id or text: why each generated token, and not this one.
            memory: As for `explain`.
            **options: Options of the method; all others are those of the model's own ``generate``,
                which is greedy unless they say ``do_sample=True``.

        Returns:
            The scores of the tokens before each generated token, and what they belong to; by the
            names of the inputs if `of` names some: of images, a map for each generated token.

        Raises:
            WhenceError: The model does not generate text, or something is wrong with the request.
        """
        names = methods.describe(method).options.keys() & options.keys()
        mine = {name: options.pop(name) for name in names}
        sequences = generate_sequences(self.model, inputs, max_new_tokens, **options)
        targets, prepared = sequences.list_targets(), sequences.inputs
        ask = partial(self.explain, prepared, None, against, targets, method, rules, memory=memory)
        if of is None:
            return sequences.make_generation(ask(**mine))
        return sequences.make_generations(ask(of=list(of), **mine))
