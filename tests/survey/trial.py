"""Try a method on a case: it runs, is refused with a sentence, or fails."""

from __future__ import annotations

import contextlib
import signal
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.survey.case import SEED, Inputs, SurveyCase, build_model
from whence import Explainer, Explanation, WhenceError

METHODS = (
    "whence",
    "tiba",
    "gae",
    "rollout",
    "attention_norm",
    "attcat",
    "value_zeroing",
    "attnlrp",
    "input_x_gradient",
)
SECONDS = 60
OTHER_WEIGHTS = 3  # are tried where all scores are zero


@dataclass(frozen=True)
class Outcome:
    """How a trial ended: "runs", "refused" with a sentence, or "fails" with what is wrong."""

    kind: str
    sentence: str = ""


class ZeroScoresError(Exception):
    """All scores of a sample are zero, which may be right: no part speaks for the target."""


class Trial:
    """A built case, on which methods are tried."""

    def __init__(self, case: SurveyCase, seed: int = SEED) -> None:
        self.case, self._seed = case, seed
        self.model, self.inputs = build_model(case, seed), case.make_inputs()
        self.explainer = Explainer(self.model, output=case.output)
        self.plain = _run_plainly(self.model, self.inputs)
        self._weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        self._hooks = self._count_hooks()

    def try_method(self, method: str) -> Outcome:
        """Explain the batch, and check what comes out."""
        case = self.case
        try:
            with warnings.catch_warnings(), _time_limit(SECONDS):
                warnings.simplefilter("ignore")
                result = self.explainer.explain(self.inputs, case.target, method=method, of=case.of)
                self._check(result)
        except WhenceError as error:
            outcome = Outcome("refused", str(error))
        except ZeroScoresError:
            if self._seed < SEED + OTHER_WEIGHTS:
                return Trial(case, self._seed + 1).try_method(method)
            outcome = Outcome("fails", "all scores of a sample are zero")
        except Exception as error:  # anything else is a fault of ours
            outcome = Outcome("fails", f"{type(error).__name__}: {error}")
        else:
            outcome = Outcome("runs")
        if self._has_changed():
            return Outcome("fails", "The model is not as it was.")
        return outcome

    def _check(self, result: Explanation) -> None:
        assert torch.isfinite(result.scores).all(), "scores are not finite"
        samples = result.scores.flatten(1)
        if not samples.abs().amax(1).all():
            raise ZeroScoresError
        if callable(self.case.target):
            expected = self.case.target(self.plain, self.inputs)
            assert torch.allclose(result.values.flatten(), expected, rtol=1e-3, atol=1e-4), (
                "the target has another value than in a plain forward pass"
            )
        elif result.logits.dim() == 2 and result.logits.shape[1] > 1:
            assert all(map(self._has_logits, result.logits)), (
                "the logits are not those of a plain forward pass"
            )

    def _has_logits(self, row: Tensor) -> bool:
        """Whether a row of logits is among what the model returned."""
        outputs = self.plain if self.case.output is None else self.case.output(self.plain)
        for found in _list_tensors(outputs):
            for rows in (found, found.movedim(1, -1) if found.dim() > 2 else found):
                if rows.shape[-1:] != row.shape:
                    continue
                listed = rows.reshape(-1, len(row))  # masked logits may be infinite
                errors = (listed - row).abs().masked_fill(listed == row, 0).amax(1)
                largest = row.abs()[row.isfinite()].max()
                if (errors <= 1e-3 * largest.clamp(min=1)).any():
                    return True
        return False

    def _count_hooks(self) -> int:
        """Count the hooks; some models of transformers have their own."""
        return sum(len(module._forward_hooks) for module in self.model.modules())

    def _has_changed(self) -> bool:
        now = self.model.state_dict()
        return (
            self.model.training
            or self._count_hooks() != self._hooks
            or not all(torch.equal(now[name], value) for name, value in self._weights.items())
        )


def _run_plainly(model: nn.Module, inputs: Inputs) -> Any:
    with torch.no_grad():
        return model(inputs) if isinstance(inputs, Tensor) else model(**inputs)


def _list_tensors(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, Mapping):
        for value in outputs.values():
            yield from _list_tensors(value)
    elif isinstance(outputs, list | tuple):
        for value in outputs:
            yield from _list_tensors(value)


@contextlib.contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def stop(_number: int, _frame: Any) -> None:
        raise TimeoutError(f"not done after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
