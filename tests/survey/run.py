"""Try methods on cases: ``python -m tests.survey.run [PART OF A NAME …] [--write]``.

It prints what ran, and what did not by its reason; ``--write`` renews the record that comes with
whence and the tables in docs/models.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from tests import conftest  # noqa: F401  (lets torchvision import beside a CPU build of torch)
from tests.survey.case import SurveyCase
from tests.survey.cases import CASES
from tests.survey.record import write_record
from tests.survey.trial import METHODS, Trial

SIGNS = {"runs": "+", "refused": "-", "fails": "!"}
Results = dict[str, dict[str, Any]]


def main() -> None:
    """Run the survey that the command line asks for, and print it in groups."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of cases; all if none")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--out", type=Path, help="a JSON file for the outcomes")
    parser.add_argument("--from", dest="past", type=Path, help="outcomes of an earlier run")
    parser.add_argument("--write", action="store_true", help="renew the record and the page")
    options = parser.parse_args()
    if options.past:
        results = json.loads(options.past.read_text())
    else:
        chosen = [
            case
            for name, case in CASES.items()
            if not options.names or any(part in name for part in options.names)
        ]
        results = survey(chosen, options.methods.split(","), options.out)
    if options.write:
        write_record(results)
    print(summarize(results))


def survey(cases: list[SurveyCase], methods: list[str], out: Path | None = None) -> Results:
    """Try each method on each case: whether it runs, or the sentence why not.

    Outcomes are written to a file after each case, so that a run that is broken off is not lost.
    """
    results: Results = {}
    for number, case in enumerate(cases, 1):
        start = time.monotonic()
        try:
            trial = Trial(case)
        except Exception as error:  # this release of the library builds it otherwise
            found = {name: ["fails", f"no model: {error}"] for name in methods}
        else:
            found = {}
            for name in methods:
                outcome = trial.try_method(name)
                found[name] = [outcome.kind, outcome.sentence]
        results[case.name] = {"family": case.family, "task": case.task, "methods": found}
        seconds = time.monotonic() - start
        kinds = "".join(SIGNS[kind] for kind, _ in found.values())
        print(f"{number:4}/{len(cases)} {kinds} {seconds:5.1f}s {case.name}", flush=True)
        if out:
            out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        gc.collect()
    return results


def summarize(results: Results) -> str:
    """Count what runs for each method, and group what does not by its sentence, worst first."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    groups: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, result in results.items():
        for method, (kind, sentence) in result["methods"].items():
            counts[method][kind] += 1
            if kind != "runs":
                groups[kind, _blur(sentence)][name].append(method)
    lines = [f"{len(results)} cases"]
    for method, found in counts.items():
        lines.append(f"{method:18} " + ", ".join(f"{n} {kind}" for kind, n in found.items()))
    for (kind, sentence), names in sorted(groups.items(), key=lambda one: -len(one[1])):
        methods = sorted({method for found in names.values() for method in found})
        lines.append(f"\n{len(names)} cases {kind} ({', '.join(methods)}): {sentence}")
        lines.append("    " + "; ".join(names))
    return "\n".join(lines)


def _blur(sentence: str) -> str:
    """Leave out what differs between models in one kind of sentence."""
    sentence = re.sub(r"module '[^']*' \(\w+\)", "a module", sentence)
    sentence = re.sub(r"'[^']*'", "'…'", re.sub(r"(seen in) \w+", r"\1 a model", sentence))
    return re.sub(r"\d+", "N", sentence)[:200].replace("\n", " ")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
