"""What a protocol is: from samples and a method to rows, from rows to columns of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from whence.benchmark.columns import Columns
from whence.benchmark.labels import Labels
from whence.errors import WhenceError
from whence.methods.specification import Chosen
from whence.models import LoadedModel

if TYPE_CHECKING:
    from whence.datasets import Sample
    from whence.explanation import Explanation

Row = dict[str, Any]
Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Metric:
    """A column of a table: a mean over samples, or sums over the set divided by sums.

    Attributes:
        name: Its heading.
        columns: Columns of the rows: the one that is averaged, or the numerators.
        better: Which way is better.
        denominators: If the figure is pooled over the set: what the sums of columns are divided by.
            Of several ratios the mean is taken.
        factor: What figures are multiplied by: 100 for percent.
        digits: How many are shown behind the point.
        shown: Whether it has a place in narrow tables; all are in table.csv and report.html.
    """

    name: str
    columns: tuple[str, ...]
    better: Better
    denominators: tuple[str, ...] = ()
    factor: float = 1.0
    digits: int = 2
    shown: bool = True

    @property
    def heading(self) -> str:
        """The name, and an arrow to where it is better."""
        return f"{self.name} {'↑' if self.better == 'higher' else '↓'}"


@dataclass(frozen=True)
class Curve:
    """Lines to draw, one for each method.

    Attributes:
        title: What is shown.
        column: A column of the rows whose values are lists; the mean over samples is drawn.
        x: Where the values stand.
        x_title: What x is.
        percent: Whether values are shares, drawn from 0 to 100 %.
    """

    title: str
    column: str
    x: tuple[float, ...]
    x_title: str
    percent: bool = True


@dataclass
class Protocol:
    """A way to judge explanations. Its fields are its options.

    Attributes:
        name: What it is called.
        title: The heading of its table.
        kind: What samples it takes.
        main: The name of the metric that examples are ranked by.
        main_column: The column of the rows that ranks samples by it.
        labels: What the dataset's labels mean.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    main: ClassVar[str]
    main_column: ClassVar[str]

    labels: Labels = field(default_factory=Labels, kw_only=True)

    def options(self) -> dict[str, Any]:
        """The options, for run.json."""
        told = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}
        given = dict(told.pop("labels").given)
        return told | ({"classes": given} if given else {})

    def check(self, loaded: LoadedModel, kind: str, first: Sample) -> None:  # noqa: ARG002
        """Refuse what the protocol cannot judge.

        Args:
            loaded: The model.
            kind: Of the dataset.
            first: A sample of it.

        Raises:
            WhenceError: It says what is missing.
        """
        if kind not in self.kinds:
            raise WhenceError(self.wrong_kind(kind))
        if loaded.kind != kind:
            raise WhenceError(
                f"The model '{loaded.name}' explains {loaded.kind}s, and the dataset holds {kind}s."
            )

    def wrong_kind(self, kind: str) -> str:
        """The sentence for a dataset of another kind."""
        return f"The {self.name} benchmark is for {' and '.join(self.kinds)}s, not {kind}s."

    def begin(self, names: Sequence[str], seed: int) -> None:
        """Know all samples of the run before the first batch."""

    def ready(self, loaded: LoadedModel, sample: Sample) -> Any:  # noqa: ARG002
        """Prepare a sample as far as threads can, before its batch begins."""
        return sample

    def rows(self, loaded: LoadedModel, samples: Sequence[Any], method: Chosen) -> list[Row]:
        """Judge a method on a batch: a row for each sample, in order.

        Args:
            loaded: The model.
            samples: Samples, or what `ready` made of them.
            method: The method.
        """
        raise NotImplementedError

    def metrics(self, results: Mapping[str, Columns]) -> list[Metric]:
        """The columns of the table, as far as there are results for them."""
        raise NotImplementedError

    def curves(self, results: Mapping[str, Columns]) -> list[Curve]:  # noqa: ARG002
        """The curves to draw."""
        return []

    def notes(self, results: Mapping[str, Columns]) -> list[str]:  # noqa: ARG002
        """Sentences that belong under the table."""
        return []

    def example(self, loaded: LoadedModel, sample: Sample, method: Chosen) -> tuple[Any, Any]:
        """An explanation of a sample, of the class that this protocol explains.

        Returns:
            What the model saw (a photo, or the text), and the explanation.
        """
        prepared = loaded.prepare([sample.content])
        return prepared.shown[0], loaded.explain(prepared, **method.request())


def has(results: Mapping[str, Columns], column: str) -> bool:
    """Whether any method has a number in a column."""
    return any(
        column in columns
        and columns[column].dtype != object
        and bool(np.isfinite(columns[column]).any())
        for columns in results.values()
    )


def present(results: Mapping[str, Columns], metrics: Sequence[Metric]) -> list[Metric]:
    """The metrics that there are numbers for."""
    return [
        m for m in metrics if all(has(results, column) for column in (*m.columns, *m.denominators))
    ]


def numbers(values: Tensor) -> list[Any]:
    """A tensor as plain numbers, for rows."""
    found: list[Any] = values.detach().double().cpu().tolist()
    return found


def explained(loaded: LoadedModel, inputs: Any, method: Chosen, **classes: Any) -> Explanation:
    """Explain inputs that lie on the device already."""
    return loaded.explainer.explain(inputs, **classes, **method.request())
