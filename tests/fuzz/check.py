"""One random model: whence beside the oracle, method by method."""

from __future__ import annotations

import traceback
import warnings
from dataclasses import dataclass, field

from torch import Tensor

from tests.fuzz.models import Case, draw
from tests.fuzz.oracle import Oracle
from tests.fuzz.paths import make_explainer, prepare, take_path
from tests.fuzz.plans import Plan
from whence import WhenceError

METHODS = (
    "whence",
    "shared_evidence",
    "tiba",
    "gae",
    "rollout",
    "attnlrp",
    "reslrp",
    "input_x_gradient",
)
TOLERANCE = 1e-7
_AT_INPUT = ("attnlrp", "reslrp", "input_x_gradient")


@dataclass
class Outcome:
    """How a method ended: agreed, refused, disagreed or crashed; and why."""

    method: str
    verdict: str
    why: str = ""


@dataclass
class Report:
    """The outcomes of one case."""

    seed: int
    outcomes: list[Outcome] = field(default_factory=list)
    may_be_refused: bool = False
    by_programs: int = 0  # so many outcomes are of compiled programs
    is_dead: bool = False  # the logits do not react, so that there is nothing to compare

    @property
    def failures(self) -> list[Outcome]:
        return [one for one in self.outcomes if one.verdict in ("disagreed", "crashed")]

    @property
    def refusals(self) -> list[Outcome]:
        return [one for one in self.outcomes if one.verdict == "refused"]


def measure_error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest expected number."""
    if found.shape != expected.shape:
        return float("inf")
    whole = max(float(expected.abs().max()), 1e-6)  # exact zeros are sums of rounding errors
    return float((found - expected).abs().max()) / whole


def check_seed(seed: int, methods: tuple[str, ...] = METHODS, path: str = "plain") -> Report:
    return check_case(draw(seed), methods, path=path)


def check_case(
    case: Case,
    methods: tuple[str, ...] = METHODS,
    oracle: type[Oracle] = Oracle,
    path: str = "plain",
) -> Report:
    """Explain a case by all methods on one of the paths, and compare with the oracle."""
    report = Report(case.plan.seed, may_be_refused=case.plan.structure != "plain")
    truth = oracle(case)
    error = measure_error(truth.read("stable", truth.classes[:, 0]).logits, truth.logits)
    if not error < TOLERANCE:
        raise AssertionError(f"seed {case.plan.seed}: the oracle runs another model ({error:.1e})")
    if truth.is_dead():
        report.is_dead = True
        return report
    explainer = make_explainer(case, path)
    for method in methods:
        if not _is_known(case.plan, method):
            continue
        keep = method == "tiba" and case.plan.seed % 2 == 0 and not report.may_be_refused
        keep &= case.plan.other_depth is None  # or samples may differ in their layers
        keep &= path not in ("compiled", "fused")  # evidence is not
        try:
            with warnings.catch_warnings(), take_path(path) as by_programs:
                warnings.simplefilter("ignore")
                warnings.filterwarnings("error", ".*cannot be fused")  # falls back, and is a fault
                prepare(explainer, case, method, path)
                by_programs.clear()
                result = explainer.explain(
                    case.inputs, method=method, keep_evidence=keep, **case.asked
                )
                report.by_programs += bool(by_programs)
        except WhenceError as error:
            report.outcomes.append(Outcome(method, "refused", str(error)))
            continue
        except Exception:
            lines = traceback.format_exc().strip().splitlines()
            report.outcomes.append(Outcome(method, "crashed", " | ".join(lines[-4:])))
            continue
        why = _compare(truth, method, result)
        if not why and keep:
            why = _compare_evidence(truth, result.evidence)
        report.outcomes.append(Outcome(method, "disagreed" if why else "agreed", why))
    return report


def _is_known(plan: Plan, method: str) -> bool:
    """Whether the oracle knows what a method gives.

    It does not know how much is read of each of two depths that a head or a block adds, nor what
    leads around an attention without a skip connection: a gate, or an MLP beside it.
    """
    if method == "reslrp" and plan.mixed_depth is not None:
        return False  # whether what is read is a skip connection and its branches
    if method in _AT_INPUT:
        return True
    has_skips = all(block.has_skip for block in plan.blocks)
    adds = plan.mixed_depth is not None or any(b.extra == "embedding" for b in plan.blocks)
    return has_skips and not adds


def _compare(truth: Oracle, method: str, result: object) -> str:
    error = measure_error(result.logits, truth.logits)
    if not error < TOLERANCE:
        return f"logits off by {error:.1e}"
    expected = truth.explain(method)
    if truth.case.plan.structure != "plain" and result.scores.shape != expected.shape:
        # Without one sequence of tokens, units are other parts of the input.
        error = measure_error(result.scores.sum(-1), expected.sum(-1))
        return "" if error < TOLERANCE else f"sums of scores off by {error:.1e}"
    if result.scores.shape != expected.shape:
        return f"scores of shape {tuple(result.scores.shape)}, not {tuple(expected.shape)}"
    error = measure_error(result.scores, expected)
    return "" if error < TOLERANCE else f"scores off by {error:.1e}"


def _compare_evidence(truth: Oracle, evidence: object) -> str:
    """Compare attention, gradients and relevance at the maps of the attentions that take part."""
    for column in range(truth.classes.shape[1]):
        classes = truth.classes[:, column]
        used = [truth.find_sites(sample, classes) for sample in range(len(classes))]
        if any(sites != used[0] for sites in used):
            continue
        gradient, relevance = truth.read("gradient", classes), truth.read("stable", classes)
        several = "classes" in truth.case.asked
        kinds = {"attention": gradient.maps}
        kinds |= {"gradient": gradient.at_maps, "relevance": relevance.at_maps}
        for name, expected in kinds.items():
            found = getattr(evidence, name)
            if len(found) == len(used[0]):
                expected = [expected[n] for n in used[0]]
            if len(found) != len(expected):
                return f"{name} at {len(found)} maps, not {len(expected)}"
            for n, (one, other) in enumerate(zip(found, expected, strict=True)):
                one = one[:, column] if several and name != "attention" else one
                error = measure_error(one, other)
                if not error < TOLERANCE and float(other.abs().max()) > 1e-12:
                    return f"{name} at map {n} off by {error:.1e}"
    return ""
