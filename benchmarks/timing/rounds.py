"""Functions measured in turns, round by round, so that a busy machine slows all of them."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from .figures import summarize
from .memory import Peak, measure_peak

Run = Callable[[], Any]
CPU = torch.device("cpu")
Key = tuple[str, str]  # what is measured, and the variant of it
BASELINE_VARIANT = ""


@dataclass(frozen=True)
class Group:
    """What takes turns: the rows of one model, one input and one setting.

    Attributes:
        section: Where it belongs.
        title: The table that its rows stand in.
        setting: What distinguishes it from other groups of that table, by the names of columns.
        runs: What is measured, by name and variant.
        device: Where it runs.
        baseline: The row, of no variant, that the others are compared with.
        unit: What a ratio with the baseline counts.
        calls: How often each runs before the rounds, which also measures its memory.
        clock: Seconds of one run; by default wall time, the device's own work included.
        notes: A remark on a row, by its name.
    """

    section: str
    title: str
    setting: Mapping[str, Any]
    runs: Mapping[Key, Run]
    device: torch.device = CPU
    baseline: str = "forward"
    unit: str = "forwards"
    calls: int = 1
    clock: Callable[[Run], float] | None = None
    notes: Mapping[str, str] = field(default_factory=dict)

    def measure_seconds(self, run: Run) -> float:
        """Seconds of one run."""
        return measure_seconds(run, self.device) if self.clock is None else self.clock(run)


class WarmGroup:
    """A group that ran before it is measured. What failed then is left out, and its row says so."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.peaks: dict[Key, Peak] = {}
        self.problems: dict[Key, str] = {}
        for key, run in group.runs.items():
            self._warm_up(key, run)

    def _warm_up(self, key: Key, run: Run) -> None:
        calls, device = self.group.calls, self.group.device
        with self._note_problem(key):
            if calls > 0:
                self.peaks[key] = measure_peak(lambda: [run() for _ in range(calls)], device)

    @contextmanager
    def _note_problem(self, key: Key) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the other rows are measured all the same
            lines = str(error).splitlines() or [""]
            self.problems[key] = f"not measured: {type(error).__name__}: {lines[0][:200]}"

    def measure_round(self, without: Collection[Key] = ()) -> dict[Key, float]:
        """Milliseconds of each, one after the other, but of those that failed before."""
        times = {}
        for key, run in self.group.runs.items():
            if key not in without and key not in self.problems:
                with self._note_problem(key):
                    times[key] = self.group.measure_seconds(run) * 1e3
        return times

    def measure(self, rounds: int, patience: float) -> list[dict[str, Any]]:
        """Rows of so many rounds; what takes longer than `patience` seconds has one round."""
        times: dict[Key, list[float]] = {key: [] for key in self.group.runs}
        slow: set[Key] = set()
        for _ in range(rounds):
            for key, milliseconds in self.measure_round(slow).items():
                times[key].append(milliseconds)
                if milliseconds > patience * 1e3:
                    slow.add(key)
        return list(self.make_rows(times))

    def make_rows(self, times: Mapping[Key, list[float]]) -> Iterator[dict[str, Any]]:
        """Rows as they are kept in the file of a run, given the milliseconds of their rounds."""
        group = self.group
        baseline = times.get((group.baseline, BASELINE_VARIANT), ())
        for key in group.runs:
            what, variant = key
            row = {
                "section": group.section,
                "title": group.title,
                "setting": dict(group.setting),
                "what": what,
                "variant": variant,
                "unit": group.unit,
                "times": [round(one, 5) for one in times.get(key, ())],
                "note": self.problems.get(key) or group.notes.get(what, ""),
                **to_megabytes(self.peaks.get(key, Peak())),
            }
            yield row | (summarize(times[key], baseline) if times.get(key) else {})


def measure_seconds(run: Run, device: torch.device) -> float:
    """Wall time of one run, the device's own work included."""
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def to_megabytes(peak: Peak) -> dict[str, float | None]:
    """The memory of a row, in megabytes."""
    names = ("peak MB", "held MB", "before MB")
    return {n: None if x is None else round(x / 1e6, 1) for n, x in zip(names, peak, strict=True)}
