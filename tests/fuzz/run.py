"""Differential fuzzing: `python -m tests.fuzz.run --count 1000 --seed 0`.

Random Transformers are explained by whence and by an oracle that knows their structure. Each has to
end in agreement or in a refusal. A table tells how they ended; the exit status is 1 where one
disagreed, or an error was not one of whence's own.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch

from tests.fuzz.check import METHODS, Outcome, Report, check_seed
from tests.fuzz.paths import PATHS
from tests.fuzz.plans import draw_plan
from tests.fuzz.shrink import describe, shrink

VERDICTS = ("agreed", "refused", "disagreed", "crashed")


def run_cases(seeds: Iterable[int], jobs: int = 1, path: str = "plain") -> Iterator[Report]:
    """Check cases, in several processes of one thread each."""
    check = partial(check_safely, path=path)
    if jobs == 1:
        yield from map(check, seeds)
        return
    with ProcessPoolExecutor(jobs, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield from pool.map(check, seeds, chunksize=8)


def check_safely(seed: int, path: str = "plain") -> Report:
    """Check a case; if generator or oracle fail, that is an outcome, too."""
    try:
        return check_seed(seed, path=path)
    except Exception as error:
        return Report(seed, [Outcome("oracle", "crashed", f"{type(error).__name__}: {error}")])


def format_table(reports: list[Report]) -> str:
    """How the methods ended, with sentences and seeds."""
    counts = Counter((one.method, one.verdict) for report in reports for one in report.outcomes)
    lines = [f"{'':20}" + "".join(f"{verdict:>11}" for verdict in VERDICTS)]
    for method in METHODS:
        lines.append(
            f"{method:20}" + "".join(f"{counts[method, verdict]:>11}" for verdict in VERDICTS)
        )
    plain = [report for report in reports if not report.may_be_refused]
    refused = [report for report in plain if report.refusals]
    failed = [report for report in reports if report.failures]
    dead = sum(report.is_dead for report in reports)
    share = 100 * len(refused) / max(1, len(plain))
    lines.append(
        f"\n{len(reports)} cases, {len(plain)} of them without windows, merged tokens and "
        f"cross-attention; {len(refused)} of these ({share:.1f} %) refused by some method; "
        f"{len(failed)} failed; {dead} cannot be compared, as their logits do not react."
    )
    by_programs = sum(report.by_programs for report in reports)
    if by_programs:
        lines.append(f"{by_programs} explanations were computed by programs, the others eagerly.")
    for chosen in VERDICTS[1:]:
        groups: dict[str, list[int]] = defaultdict(list)
        for report in plain if chosen == "refused" else reports:
            for one in report.outcomes:
                if one.verdict == chosen:
                    groups[f"{one.method}: {_generalize(one.why)}"].append(report.seed)
        if groups:
            lines.append(f"\n{chosen.capitalize()}:")
        for sentence, seeds in sorted(groups.items(), key=lambda item: -len(item[1])):
            some = ", ".join(map(str, seeds[:5])) + (", …" if len(seeds) > 5 else "")
            lines.append(f"{len(seeds):>6}  {sentence}\n        seeds {some}")
    return "\n".join(lines)


def _generalize(sentence: str) -> str:
    """A sentence without the numbers and names of one model."""
    sentence = re.sub(r"module '[^']*'", "module '…'", sentence)
    return re.sub(r"\d+(\.\d+)?(e[+-]\d+)?", "#", sentence)[:160]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--path", choices=PATHS, default="plain", help="how scores are computed")
    parser.add_argument("--out", type=Path, help="a JSON file with all outcomes")
    parser.add_argument("--shrink", action="store_true", help="name the simplest model that fails")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    begun = time.perf_counter()
    seeds, reports = range(chosen.seed, chosen.seed + chosen.count), []
    for report in run_cases(seeds, chosen.jobs, chosen.path):
        reports.append(report)
        for one in report.failures:
            print(f"seed {report.seed}: {one.method} {one.verdict}: {one.why}", flush=True)
    print(format_table(reports))
    print(f"\n{time.perf_counter() - begun:.0f} s")
    if chosen.shrink:
        print_kinds(reports, chosen.path)
    if chosen.out is not None:
        outcomes = [
            {"seed": report.seed, **vars(one)} for report in reports for one in report.outcomes
        ]
        chosen.out.write_text(json.dumps(outcomes, indent=1))
    return int(any(report.failures for report in reports))


def print_kinds(reports: list[Report], path: str) -> None:
    """Shrink each failure, and print what the simplest models have in common."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for report in reports:
        for one in report.failures:
            plan = draw_plan(report.seed)
            plan = plan if one.method == "oracle" else shrink(plan, one, path)
            kinds[f"{one.method} {one.verdict}: {describe(plan)}"].append(report.seed)
    for kind, seeds in sorted(kinds.items(), key=lambda item: -len(item[1])):
        print(f"{len(seeds):>4} {kind}\n     seeds {seeds[:5]}")


if __name__ == "__main__":
    sys.exit(main())
