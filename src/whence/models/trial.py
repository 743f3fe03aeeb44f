"""Try methods on a sample; for those of many passes, others that tell whether they run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from whence.errors import NoAttentionError, WhenceError, WhenceWarning
from whence.explanation import Explanation
from whence.methods import registry
from whence.methods.registry import Method

_NO_ATTENTION = "The model has no attention that could be seen"
_LONG = ("attention_flow",)  # a maximum flow for each token
_AT_INPUT = "input_x_gradient"  # tells of methods at the input whose gradients go by rules
_IMAGES_ONLY = "The method explains images only, and the parts of this input lie in no grid"


class MethodTrial:
    """Methods that were tried on a sample, and what that says of others.

    Args:
        explain: Explains the sample, by ``method=`` and further options of `Explainer.explain`.
    """

    def __init__(self, explain: Callable[..., Explanation]) -> None:
        self._explain_sample = explain
        self._problems: dict[str, str] = {}
        self._methods = {name: registry.get(name)() for name in registry.available()}
        self.runs: dict[str, Explanation] = {}
        self.has_attention = True

    def try_all(
        self, names: Sequence[str], advance: Callable[[int], None] = lambda _: None
    ) -> tuple[list[str], dict[str, list[str]]]:
        """Find the methods that run, and the other ones by the reason why not.

        Args:
            names: The methods to try.
            advance: Called with 1 for each of them, when it is known whether it runs.
        """
        refused: dict[str, list[str]] = {}
        for name in sorted(names, key=lambda name: -len(self._methods[name].needs)):
            problem = self.find_problem(name)
            if problem is not None:
                refused.setdefault(problem, []).append(name)
            advance(1)
        not_run = {name for group in refused.values() for name in group}
        running = [name for name in names if name not in not_run]
        return running, {problem: sorted(group) for problem, group in refused.items()}

    def find_problem(self, name: str) -> str | None:
        """Find the reason why a method does not run; None if it does.

        A method of many passes is not tried, but one of a few that reads the same or more.
        """
        method = self._methods[name]
        if not self.has_attention and method.scores_tokens:
            return _NO_ATTENTION
        takes_many = "forwards" in method.needs or name in _LONG
        if takes_many and method.needs_one_sequence:
            for other, problem in self._problems.items():
                if self._methods[other].needs_one_sequence and "one sequence" in problem:
                    return problem
        if takes_many and "blocks" in method.needs:
            # Where tokens are in windows or merged, only the method itself tells.
            takes_many = not any("one sequence" in said for said in self._problems.values())
        for other, seen in self.runs.items():
            if takes_many and _covers(self._methods[other], method):
                return None if _suits(method, seen) else _IMAGES_ONLY
        probe = self._find_probe(method) or name if takes_many else name
        if probe in self._problems:
            return self._problems[probe]
        try:
            self.runs[probe] = self._explain(probe)
        except NoAttentionError:
            self.has_attention = False
            return _NO_ATTENTION
        except WhenceError as error:
            self._problems[probe] = str(error)
            return str(error)
        return None if _suits(method, self.runs[probe]) else _IMAGES_ONLY

    def measure_attention(self) -> list[list[int]]:
        """Measure the maps that the decision depends on: heads, queries and keys of each."""
        if not self.has_attention:
            return []
        for method in ("raw_attention", "rollout", "gae"):  # not every one reads every model
            try:
                seen = self._explain(method, keep_evidence=True)
            except WhenceError:
                continue
            if seen.evidence is not None and len(seen.evidence.attention):
                return [list(one.shape[-3:]) for one in seen.evidence.attention]
        return []

    def _find_probe(self, method: Method) -> str | None:
        """The cheapest method that reads what this one reads, but for further forward passes."""
        others = sorted(self._methods, key=lambda name: len(self._methods[name].needs))
        for name in others:
            other = self._methods[name]
            is_short = "forwards" not in other.needs and name not in _LONG
            if is_short and other.scores_tokens <= method.scores_tokens and _covers(other, method):
                return name
        return None if method.scores_tokens else _AT_INPUT

    def _explain(self, method: str, **options: bool) -> Explanation:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", WhenceWarning)
                return self._explain_sample(method=method, **options)
        except WhenceError:
            raise
        except Exception as error:  # a model of the user's may raise anything
            raise WhenceError(f"The model failed: {type(error).__name__}: {error}.") from error


def _covers(probe: Method, method: Method) -> bool:
    """Whether a method runs wherever the other, the probe, does."""
    needs = set(method.needs) - {"forwards"}
    return needs <= set(probe.needs) and _list_rules(method) <= _list_rules(probe)


def _suits(method: Method, seen: Explanation) -> bool:
    """Whether a method explains inputs of which an explanation is seen, by their layout."""
    return "text" in method.inputs or len(seen.grid or ()) > 1


def _list_rules(method: Method) -> set[str]:
    rules = method.gradient_rules
    return set() if rules is None else {rules.name}
