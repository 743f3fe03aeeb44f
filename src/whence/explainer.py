"""Explainer: a model and inputs in, an Explanation out."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from whence import methods
from whence._util.defaults import METHOD
from whence.engine.attention import AttentionMaps, read_attention
from whence.engine.batching import Batching
from whence.engine.checks import judge
from whence.engine.compiled.run import CompiledRunner, Compiling, check_compilable
from whence.engine.explanations import make_explanation
from whence.engine.generating import GeneratingExplainer
from whence.engine.naflex_images import restore_images
from whence.engine.packed_images import unpack_request
from whence.engine.request import Request, Result, Subject, bound_kept_bytes, check_memory
from whence.engine.rules import choose_rules
from whence.engine.targets import is_generative
from whence.errors import WhenceError, WhenceWarning
from whence.evidence.sample_rows import SampleRows
from whence.explanation import Explanation, Explanations
from whence.inputs.arguments import ModelArguments
from whence.layout import Layout
from whence.layout.spelling import TextTokenizer
from whence.rules import RuleSet
from whence.targets import (
    AnyTarget,
    SeveralTargets,
    find_class_names,
    parse_targets,
)
from whence.tracing import unwrap_model
from whence.tracing.ops.products import Precision, check_precision, use_precision

_COMPILING: dict[bool | str, Compiling] = {
    True: "when it pays",
    False: "never",
    "auto": "if it recurs",
}

Inputs = Tensor | Mapping[str, Any]
"""A batch as a model takes it."""


class Explainer(GeneratingExplainer):
    """Explains the decisions of one model, which is left exactly as it was found.

    Args:
        model: Any module with softmax attention that maps inputs to logits (batch, classes).
        class_names: Names of the classes, or the texts of a CLIP, if the model carries none.
        tokenizer: To know tokens, words and texts when inputs are plain ids; or its processor.
        layout: What cannot be found from the model: patch grid, prefix tokens, pooled tokens.
        output: Gets the logits from what the model returns, if it is not obvious.
        per_sample: Names of the inputs that hold one row for each sample, such as a mask. A large
            batch goes in chunks, which are cut along them. If left out, whence proves which they
            are by running some samples apart from the others; if it cannot, the batch is not cut.
        compile: Whether to compile what is computed for inputs of one shape. If true, operators
            are recorded when a method first explains them, in a second, and run without Python
            from then on. Once they ran for ten seconds, torch's compiler fuses them, which takes
            longer; `compile()` does both beforehand. Weights may change in between; a model that
            is changed otherwise (by hooks, other attributes or another mode) needs an Explainer of
            its own. ``"auto"``: on a GPU, operators are recorded when inputs of one shape were
            explained ten times. The model itself runs as well, each time; what was recorded
            counts only while it has the model's logits. False: never.
        precision: In what matrix products are computed, if not in the type of the weights:
            ``"tf32"`` on a GPU, or ``"bfloat16"``. Both are faster and coarser: the scores of
            `tiba` are off by about 0.2 % and 2 %. TF32 is a switch of torch's for all threads,
            which is put back afterwards.

    Example:
        >>> Explainer(model).explain(pixels, target="tabby").heatmap()  # doctest: +SKIP
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        class_names: Sequence[str] | Mapping[int, str] | None = None,
        tokenizer: TextTokenizer | None = None,
        layout: Layout | None = None,
        output: Callable[[Any], Tensor] | None = None,
        per_sample: Sequence[str | int] | None = None,
        compile: bool | Literal["auto"] = "auto",
        precision: Precision | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise WhenceError(f"A torch.nn.Module is needed, not {type(model).__name__}.")
        layout = Layout() if layout is None else layout
        if not isinstance(layout, Layout):
            raise WhenceError(f"layout is a whence.Layout, not {layout!r}.")
        check_precision(precision)
        if compile not in (True, False, "auto"):
            raise WhenceError(f"compile is True, False or 'auto', not {compile!r}.")
        if isinstance(per_sample, str):
            raise WhenceError(f"per_sample is a tuple of names, such as ({per_sample!r},).")
        if class_names is None:
            names = find_class_names(unwrap_model(model))
        elif isinstance(class_names, Mapping):
            names = {int(index): str(name) for index, name in class_names.items()}
        else:
            names = dict(enumerate(map(str, class_names)))
        self.model = model
        self.class_names = names
        self.precision = precision
        self.compiles = compile
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        stated, rows = class_names is not None, SampleRows(per_sample)
        self._subject = Subject(model, names, tokenizer, layout, output, stated, rows)
        self._batching = Batching()
        self._compiled = CompiledRunner(model, repr(layout), output, precision)

    @overload
    def explain(
        self,
        inputs: Inputs,
        target: AnyTarget | None = None,
        against: AnyTarget | None = None,
        classes: SeveralTargets | None = None,
        method: str = METHOD,
        rules: str | RuleSet = "stable",
        *,
        of: str | int | None = None,
        keep_evidence: bool = False,
        memory: float | None = None,
        **options: Any,
    ) -> Explanation: ...

    @overload
    def explain(
        self,
        inputs: Inputs,
        target: AnyTarget | None = None,
        against: AnyTarget | None = None,
        classes: SeveralTargets | None = None,
        method: str = METHOD,
        rules: str | RuleSet = "stable",
        *,
        of: list[str] | tuple[str, ...],
        keep_evidence: bool = False,
        memory: float | None = None,
        **options: Any,
    ) -> Explanations: ...

    def explain(
        self,
        inputs: Inputs,
        target: AnyTarget | None = None,
        against: AnyTarget | None = None,
        classes: SeveralTargets | None = None,
        method: str = METHOD,
        rules: str | RuleSet = "stable",
        *,
        of: str | int | Sequence[str] | None = None,
        keep_evidence: bool = False,
        memory: float | None = None,
        verify: bool = False,
        **options: Any,
    ) -> Explanation | Explanations:
        """Say from which parts of each input a decision came.

        Args:
            inputs: A batch as the model takes it: a tensor, or a mapping of tensors such as a
                tokenizer or an image processor returns.
            target: What to explain. None: the model's own decision. A class, by index or name; of
                a model that compares images with texts, index t is text t where the images are
                explained, and image t where the texts are; of a language model, the next token by
                id or text. Also one of these for each sample. Anything else by `whence.targets`:
                ``token``, ``span``, ``box``, ``pixel``, ``similarity``; or any function
                ``f(outputs, inputs) -> (batch,)``.
            against: The same forms, to explain target minus against: why the one and not the other.
            classes: Instead of target, several at once: a list of targets, or a number k for the
                top k. They share one forward pass.
            method: Any of ``methods.available()``.
            rules: How relevance passes operations: any of ``rules.available()``, or a rule set of
                your own.
            of: Which of the inputs gets scores, by its name in the mapping; the model's main input
                if left out. The others are constants. A list of names: each gets scores, all from
                one forward pass, in which each of them may take a share.
            keep_evidence: Whether to return the attention, gradient and relevance of each attention
                site, and what else the method worked with.
            memory: Gibibytes that a forward pass may keep for the backward pass, or that methods of
                many forward passes may take for them; larger batches go in chunks. If left out,
                half of a GPU's free memory, or 2 on a CPU; for the backward pass no more than 4.
            verify: Whether to measure dear checks too: the logits against a plain forward pass, and
                the conservation of relevance in every operation. `Explanation.checks` has them all.
            **options: Options of the method, such as ``start_layer``.

        Returns:
            The scores of patches or tokens, and what they belong to; by the names of the inputs if
            `of` is a list.

        Raises:
            WhenceError: Something is wrong with the model, the inputs or the request.
        """
        request = self._make_request(
            inputs, (target, against, classes), method, rules, of, keep_evidence, memory, options
        )
        request = dataclasses.replace(request, verify=verify)
        result = self._run(request, _COMPILING[self.compiles])
        asked = [request.focus(name) for name in request.arguments.explained_names]
        results = (result, *result.others)
        checks = [judge(one, of, self.precision) for one, of in zip(asked, results, strict=True)]
        for check in (check for listed in checks for check in listed if check.status == "doubt"):
            warnings.warn(check.sentence, WhenceWarning, stacklevel=2)
        if result.logits.dtype in request.method.unsteady_types:
            kind = str(result.logits.dtype).removeprefix("torch.")
            warnings.warn(
                f"Scores of '{request.method_name}' in {kind} may rank parts of the input "
                f"otherwise than in float32: explain a float32 copy of the model, or use another "
                f"method, such as 'whence'.",
                stacklevel=2,
            )
        make = partial(make_explanation, precision=self.precision)
        explanations = list(map(make, asked, results, checks))
        if of is None:
            return explanations[0]
        names = (of,) if isinstance(of, str | int) else of
        for name, explanation in zip(names, explanations, strict=True):
            explanation.settings["of"] = name
        several = Explanations((str(n), one) for n, one in zip(names, explanations, strict=True))
        return explanations[0] if isinstance(of, str | int) else several

    __call__ = explain

    def compile(
        self,
        inputs: Inputs,
        target: AnyTarget | None = None,
        against: AnyTarget | None = None,
        classes: SeveralTargets | None = None,
        method: str = METHOD,
        rules: str | RuleSet = "stable",
        *,
        of: str | int | None = None,
        memory: float | None = None,
        **options: Any,
    ) -> None:
        """Compile now what `explain` computes for inputs of these shapes, while progress is shown.

        What is compiled is compared with an eager run before it is used. Afterwards `explain` uses
        it for the same method and options, and inputs of the same shapes.

        Args:
            inputs: As for `explain`; their values do not matter.
            target: As for `explain`: a program is for classes by name or index, or for the highest.
            against: As for `explain`.
            classes: As for `explain`.
            method: As for `explain`.
            rules: As for `explain`.
            of: As for `explain`, one input.
            memory: As for `explain`.
            **options: As for `explain`.

        Raises:
            WhenceError: Something is wrong with the model, the inputs or the request.
        """
        request = self._make_request(
            inputs, (target, against, classes), method, rules, of, False, memory, options
        )
        check_compilable(request)
        self._run(request, "now")

    def attention(self, inputs: Inputs) -> AttentionMaps:
        """The attention maps of a forward pass.

        Args:
            inputs: As for `explain`.

        Raises:
            WhenceError: The model has no attention that whence can follow.
        """
        return read_attention(self._subject, ModelArguments.from_inputs(inputs, self.model))

    def _make_request(
        self,
        inputs: Inputs,
        targets: tuple[AnyTarget | None, AnyTarget | None, SeveralTargets | None],
        name: str,
        rules: str | RuleSet,
        of: str | int | Sequence[str] | None,
        keep_evidence: bool,
        memory: float | None,
        options: dict[str, Any],
    ) -> Request:
        method = methods.build(name, options)
        check_memory(memory)
        rule_set = choose_rules(rules, method, name, keep_evidence)
        arguments = ModelArguments.from_inputs(inputs, self.model, of)
        device = arguments.main.device
        restored = restore_images(self._subject, arguments) or (self._subject, arguments)
        subject, arguments, sizes = unpack_request(*restored, "forwards" in method.needs)
        return Request(
            subject=subject,
            arguments=arguments,
            image_sizes=sizes,
            method=method,
            method_name=name,
            rules=rule_set,
            asked=parse_targets(*targets, is_generative(self._subject)),
            keep_evidence=keep_evidence,
            max_bytes=bound_kept_bytes(device, memory),
            memory=memory,
        ).with_tokens()

    def _run(self, request: Request, compiling: Compiling) -> Result:
        run_compiled = None
        as_given = request.subject is self._subject
        if compiling == "if it recurs" and not (as_given and self._compiled.count_use(request)):
            compiling = "never"
        if as_given and (compiling != "never" or self._compiled.has_programs):
            run_compiled = partial(self._compiled.run, compiling=compiling)
        # Whatever surrounds the call, explanations are computed in the precision of the weights.
        off = torch.autocast(request.arguments.main.device.type, enabled=False)
        with off, torch.inference_mode(False), use_precision(self.precision):
            return self._batching.run(request, run_compiled)
