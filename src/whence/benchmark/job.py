"""One benchmark run: what it computes, and its state in run.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from whence._util.fingerprint import list_versions
from whence.benchmark.protocols.base import AnyProtocol
from whence.benchmark.store import ResultStore
from whence.methods import MethodSpecification
from whence.metrics.rankings import Ranking
from whence.models import LoadedModel

if TYPE_CHECKING:
    from whence.datasets import Dataset


@dataclass(frozen=True)
class BenchmarkJob:
    """One run of a protocol over the samples `names` of a dataset, `batch` at once.

    `ranking` is the test that groups methods in the overview. A job that `drops_methods` goes on
    without those that fail on a whole batch before they had any result; `failed` says why.
    """

    protocol: AnyProtocol
    loaded: LoadedModel
    dataset: Dataset
    methods: list[MethodSpecification]
    names: list[str]
    store: ResultStore
    batch: int
    seed: int
    ranking: Ranking = "nemenyi"
    drops_methods: bool = False
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def earlier_versions(self) -> list[dict[str, str]]:
        """Other versions of libraries that results in the folder may come from."""
        earlier = self.store.earlier
        before = [*earlier.get("versions_before", ()), earlier.get("versions")]
        return [one for one in before if one is not None and one != list_versions()]

    def describe(self) -> dict[str, object]:
        """The request and its environment, for run.json."""
        return {
            "model": self.loaded.name,
            "data": self.dataset.name,
            "samples": len(self.names),
            "methods": [
                {"label": m.label, "name": m.name, "options": m.options, "rules": m.rules}
                for m in self.methods
            ],
            "batch": self.batch,
            "device": str(self.loaded.device),
            "compile": self.loaded.compile,
            "versions": list_versions(),
            "versions_before": self.earlier_versions,
        }

    def write_state(self, state: str, summary: Mapping[str, object] | None = None) -> None:
        """Write run.json: the state of the run, and a summary when it has finished."""
        labels = [method.label for method in self.methods]
        earlier = self.store.earlier
        known = [*earlier.get("methods_before", ()), *earlier.get("methods", ())]
        by_label = {method.get("label"): method for method in known}
        before = [method for label, method in by_label.items() if label not in labels]
        self.store.write_run(
            self.describe() | {"methods_before": before, "state": state} | dict(summary or {})
        )
