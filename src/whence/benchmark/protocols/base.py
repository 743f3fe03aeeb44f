"""The interface of a benchmark protocol: rows from samples and a method, a table from rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar

from PIL import Image
from torch import Tensor

from whence.benchmark.columns import Columns
from whence.benchmark.labels import LabelMapping
from whence.benchmark.shared_explanations import look_up_explanation
from whence.benchmark.stored import StoredMethod
from whence.errors import WhenceError
from whence.methods import MethodSpecification
from whence.models import LoadedModel

if TYPE_CHECKING:
    from pathlib import Path

    from whence.datasets import Dataset, Sample
    from whence.explanation import Explanation

Row: TypeAlias = dict[str, Any]
"""Figures of one sample by the names of their columns: numbers, lists of numbers, texts, None."""
Better = Literal["higher", "lower"]
PairedTestName = Literal["sign-flip", "wilcoxon"]
ModelInputs: TypeAlias = Tensor | Mapping[str, Tensor]


class NamedSample(Protocol):
    """A sample, or its prepared form."""

    @property
    def name(self) -> str:
        """The name of the sample."""


PreparedT = TypeVar("PreparedT", bound=NamedSample)


@dataclass(frozen=True)
class Metric:
    """A column of a table: a mean over samples, or sums over the set divided by sums.

    `columns` are columns of the rows: the one that is averaged, or the numerators. With
    `denominators` the figure is pooled over the set: sums of columns divided by sums of these, and
    the mean of several ratios. Figures are multiplied by `factor`, 100 for percent. Narrow tables
    hold what is `shown`; table.csv and report.html hold all. Methods are ranked over protocols by
    what is `ranked`: the figures that the protocol is known for. `test` compares two methods.
    """

    name: str
    columns: tuple[str, ...]
    better: Better
    denominators: tuple[str, ...] = ()
    factor: float = 1.0
    digits: int = 2
    shown: bool = True
    ranked: bool = False
    test: PairedTestName = "sign-flip"

    @property
    def heading(self) -> str:
        """The name, and an arrow in the better direction."""
        return f"{self.name} {'↑' if self.better == 'higher' else '↓'}"


@dataclass(frozen=True)
class Curve:
    """A panel of the chart, with one line for each method.

    `column` holds lists, whose mean over samples is drawn over `x`; shares are drawn as percentages
    from 0.
    """

    title: str
    column: str
    x: tuple[float, ...]
    x_title: str
    percent: bool = True


@dataclass
class BenchmarkProtocol(Generic[PreparedT]):
    """A way to judge explanations. Its fields are its options.

    Attributes:
        name: The name on the command line.
        title: The name as headings write it, if that is not `name` with a capital.
        kinds: The kinds of samples that it takes.
        main: The name of the metric that examples are ranked by.
        main_column: The column of the rows that ranks samples by it.
        judges_stored: Whether scores that were stored can be judged, and need not be computed.
        for_language_models: Whether it is for models that generate text, and for no others.
        labels: What the dataset's labels mean.
    """

    name: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    main: ClassVar[str]
    main_column: ClassVar[str]

    title: ClassVar[str] = ""
    judges_stored: ClassVar[bool] = False
    for_language_models: ClassVar[bool] = False

    labels: LabelMapping = field(default_factory=LabelMapping, kw_only=True)

    def list_options(self) -> dict[str, object]:
        """The options, for run.json; of several values, a single one is written as itself."""
        names = [f.name for f in dataclasses.fields(self) if f.init and f.name != "labels"]
        options: dict[str, object] = {name: getattr(self, name) for name in names}
        for name, value in options.items():
            if isinstance(value, tuple) and len(value) == 1:
                options[name] = value[0]
        return options | ({"classes": dict(self.labels.given)} if self.labels.given else {})

    @property
    def label(self) -> str:
        """The name, and those options that are not the usual ones: ``perturbation:fill=blur``."""
        usual = type(self)().list_options()
        given = [
            f"{name}={'+'.join(map(str, value)) if isinstance(value, tuple) else value}"
            for name, value in self.list_options().items()
            if name != "classes" and value != usual[name]
        ]
        return f"{self.name}:{','.join(given)}" if given else self.name

    def check(self, loaded: LoadedModel, kind: str, first: Sample) -> None:  # noqa: ARG002
        """Refuse a model, a kind of dataset or a first sample that the protocol cannot judge."""
        if kind not in self.kinds:
            raise WhenceError(self.describe_wrong_kind(kind))
        if loaded.kind != kind:
            raise WhenceError(
                f"The model '{loaded.title}' explains {loaded.kind}s, and the dataset holds "
                f"{kind}s."
            )
        if self.for_language_models and not loaded.generates:
            raise WhenceError(
                f"The {self.name} benchmark is for language models, which generate text; "
                f"'{loaded.title}' does not."
            )

    def find_main(self) -> tuple[str, str]:
        """The names of `main` and `main_column`, where these depend on the options."""
        return self.main, self.main_column

    def describe_wrong_kind(self, kind: str) -> str:
        """The sentence for a dataset of another kind."""
        return f"The {self.name} benchmark is for {' and '.join(self.kinds)}s, not {kind}s."

    def make_dataset(self, seed: int, limit: int | None) -> Dataset | None:  # noqa: ARG002
        """Make the samples that are judged where no dataset is named; None if one is needed."""
        return None

    def start(self, names: Sequence[str], seed: int) -> None:
        """Take the names of all samples of the run, before the first batch."""

    def fit(
        self, loaded: LoadedModel, dataset: Dataset, names: Sequence[str], folder: Path | None
    ) -> None:
        """Compute what every row rests on, once after `start`, such as a mean over all samples.

        Fields that it sets travel to other processes. What is large goes into a file of the run's
        `folder` (None: it is kept nowhere), written whole; a run that is resumed reads it there.
        """

    def prepare(self, loaded: LoadedModel, sample: Sample) -> PreparedT:
        """Prepare a sample before its batch begins; this runs in threads."""
        raise NotImplementedError

    def compute_rows(
        self, loaded: LoadedModel, samples: Sequence[PreparedT], method: MethodSpecification
    ) -> list[Row]:
        """Judge a method on a batch of prepared samples: a row for each, in order."""
        raise NotImplementedError

    def list_metrics(self) -> list[Metric]:
        """The columns of the table; those that have no numbers are left out of it."""
        raise NotImplementedError

    def list_figures(self) -> set[str]:
        """The columns of the rows that make the table; a row may have none of them."""
        metrics = self.list_metrics()
        return {name for one in metrics for name in (*one.columns, *one.denominators)}

    def list_curves(self, results: Mapping[str, Columns]) -> list[Curve]:  # noqa: ARG002
        """The panels of the chart; those that have no numbers are left out of it."""
        return []

    def write_notes(self, results: Mapping[str, Columns]) -> list[str]:  # noqa: ARG002
        """Sentences that belong under the table."""
        return []

    def explain_example(
        self, loaded: LoadedModel, sample: Sample, method: MethodSpecification
    ) -> tuple[Image.Image | str, Explanation]:
        """The input to show (a photo, or the text), and its explanation for the judged class."""
        prepared = loaded.prepare([sample.content])
        shown = prepared.photos[0].crop if prepared.photos else sample.content
        if isinstance(method, StoredMethod):
            return shown, method.restore(loaded, prepared.inputs, [sample.name])
        return shown, loaded.explain(prepared, **method.explain_arguments())


AnyProtocol: TypeAlias = BenchmarkProtocol[Any]


def add_columns(rows: Sequence[Row], columns: Mapping[str, Tensor]) -> None:
    """Add columns to rows, as plain numbers or lists of them."""
    for name, values in columns.items():
        for row, value in zip(rows, values.detach().double().cpu().tolist(), strict=True):
            row[name] = value


def explain_batch(
    loaded: LoadedModel,
    inputs: ModelInputs,
    method: MethodSpecification,
    target: Sequence[int] | None = None,
    names: Sequence[str] = (),
) -> Explanation:
    """Explain inputs that lie on the device already; stored scores are found by `names`."""
    if isinstance(method, StoredMethod):
        if target is not None or not names:
            raise WhenceError("Stored scores are those of the predicted class alone.")
        return method.restore(loaded, inputs, names)

    def explain() -> Explanation:
        arguments = method.explain_arguments()
        explanation: Explanation = loaded.explainer.explain(inputs, target=target, **arguments)
        return explanation

    return explain() if target is not None else look_up_explanation(loaded, inputs, method, explain)


def locate_batch(
    loaded: LoadedModel,
    inputs: ModelInputs,
    method: MethodSpecification,
    target: Sequence[int] | None = None,
) -> Explanation:
    """Explain inputs by a method's reading that says where a target lies, if it has one."""
    return explain_batch(loaded, inputs, method.to_locating(), target)
