"""The record of the survey: the file that comes with whence, and the tables in the pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.survey.cases import CASES
from tests.survey.checked import find_check
from tests.survey.trial import METHODS
from whence.models.tried import RESULTS, TriedModel, TriedModels, read_tried_models

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "models.md"
AT_INPUT = ("attnlrp", "input_x_gradient")
SAID = ("whence", "gae", "attnlrp", "input_x_gradient")
Results = Mapping[str, Mapping[str, Any]]


def write_record(results: Results, file: Path = RESULTS) -> None:
    """Write the file that comes with whence, and the tables in the page of models.

    Cases and methods that were not tried now stay as they were.
    """
    outcomes = _read_outcomes()
    for name, result in results.items():
        outcomes[name] = {**outcomes.get(name, {}), **result["methods"]}
    models = []
    for name, case in CASES.items():
        refused = dict[str, list[str]]()
        for method in METHODS:
            kind, sentence = outcomes[name][method]
            if kind != "runs":
                refused.setdefault(sentence, []).append(method)
        facts = {
            "library": case.library,
            "model": case.model,
            "family": case.family,
            "task": case.task,
            "variant": case.variant,
            "of": case.of or "",
            "refused": refused,
            "checked": find_check(case),
        }
        models.append({key: value for key, value in facts.items() if value})
    libraries = ("torch", "transformers", "timm", "torchvision")
    releases = {name: version(name).partition("+")[0] for name in libraries}
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in models)
    head = json.dumps({"releases": releases, "methods": METHODS}, indent=1).rstrip("\n}")
    file.write_text(f'{head},\n "models": [\n{lines}\n]}}\n', encoding="utf-8")
    read_tried_models.cache_clear()
    PAGE.write_text(insert_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def _read_outcomes() -> dict[str, dict[str, tuple[str, str]]]:
    """What the record says of each case: for each method, whether it runs, or why not."""
    found = {}
    for one in read_tried_models().models:
        reasons = {name: said for said, names in one.refused.items() for name in names}
        found[one.name] = {
            name: ("refused", reasons[name]) if name in reasons else ("runs", "")
            for name in METHODS
        }
    return found


def insert_tables(page: str) -> str:
    """Insert the tables between their marks in a page."""
    tried = read_tried_models()
    for mark, table in (("tasks", make_task_table(tried)), ("families", make_family_table(tried))):
        begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
        pattern = re.compile(f"{begin}\n.*?{end}", re.DOTALL)
        assert pattern.search(page), f"the page has no place for the table of {mark}"
        page = pattern.sub(lambda _, text=f"{begin}\n{table}\n{end}": text, page)
    return page


def make_task_table(tried: TriedModels) -> str:
    """Count for each task on how many models each method runs."""
    methods = tried.methods
    counts = [f"`{name}` runs on {tried.count_running(name)}" for name in SAID]
    without = sum(any("No attention was seen" in said for said in m.refused) for m in tried.models)
    lines = [
        f"Of {len(tried.models)} models and tasks, {', '.join(counts)}.",
        f"{without} of them have no softmax attention that methods could read.",
        "",
        f"| task | models | {' | '.join(f'`{method}`' for method in methods)} |",
        f"| --- {'| ---: ' * (len(methods) + 1)}|",
    ]
    groups = {**tried.group_by_task(), "**all**": list(tried.models)}
    for task, models in groups.items():
        counts = [str(tried.count_running(method, models)) for method in methods]
        lines.append(f"| {task} | {len(models)} | {' | '.join(counts)} |")
    return "\n".join(lines)


def make_family_table(tried: TriedModels) -> str:
    """List each family of a library with its tasks and the methods that run on all of them."""
    families: dict[tuple[str, str], list[TriedModel]] = {}
    for one in tried.models:
        families.setdefault((one.family, one.library), []).append(one)
    lines = [
        "| family | library | tasks | of attention | at the input | checked against |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    of_attention = [method for method in tried.methods if method not in AT_INPUT]
    for (family, library), models in sorted(families.items(), key=lambda one: _sort_key(one[0])):
        for same in _group_alike(models):
            cells = (
                family,
                library,
                ", ".join(dict.fromkeys(map(_describe_task, same))),
                _list_methods(same[0], of_attention),
                _list_methods(same[0], AT_INPUT),
                ", ".join(dict.fromkeys(one.checked or "runs" for one in same)),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _sort_key(family: tuple[str, str]) -> tuple[str, str]:
    return family[0].lower(), family[1]


def _group_alike(models: Iterable[TriedModel]) -> list[list[TriedModel]]:
    """Group the models of a family on which the same methods run."""
    groups: dict[tuple[str, ...], list[TriedModel]] = {}
    for one in models:
        groups.setdefault(one.methods, []).append(one)
    return list(groups.values())


def _describe_task(model: TriedModel) -> str:
    particular = ", ".join(part for part in (model.variant, model.of and f"`{model.of}`") if part)
    return f"{model.task} ({particular})" if particular else model.task


def _list_methods(model: TriedModel, methods: Iterable[str]) -> str:
    """Say which of some methods run: all, none, or all but a few."""
    asked = list(methods)
    out = [method for method in asked if method not in model.methods]
    if not out:
        return "all"
    if len(out) == len(asked):
        return "none"
    if len(out) <= len(asked) // 2:
        return "all but " + ", ".join(f"`{method}`" for method in out)
    return ", ".join(f"`{method}`" for method in asked if method in model.methods)
