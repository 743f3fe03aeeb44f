"""Explain inputs and give rows: what a local run and the workers of a cluster do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from whence._util.fingerprint import hash_weights
from whence.distributed.contents import Item
from whence.distributed.rows import Row, RowMaker, make_error_row, make_table
from whence.distributed.settings import RunDescription, RunSettings, describe_run
from whence.errors import WhenceError
from whence.models import LoadedModel
from whence.pipeline import BatchExplainer, ExplainedInput


class RowExplainer:
    """Explain inputs with one model, and give a row for each.

    Args:
        settings: Of the run.
        description: Of the run; made from the model if left out. One that was made with other
            weights is refused.
        loaded: The model; loaded as the settings say if left out.

    Raises:
        WhenceError: The model cannot be loaded, or is not that of the description.
    """

    def __init__(
        self,
        settings: RunSettings,
        description: RunDescription | None = None,
        loaded: LoadedModel | None = None,
    ) -> None:
        self.settings = settings
        self.loaded = loaded or settings.load_model()
        if description is None:
            description = describe_run(settings, self.loaded)
        elif loaded is None:
            _check_weights(self.loaded, description)
        self.description = description
        threads = settings.count_threads()
        self._explainer = BatchExplainer(settings.explain, self.loaded, threads, is_proven=True)

    def explain(self, items: Sequence[Item]) -> Any:
        """Explain inputs; what is wrong with one of them is its row's error.

        Args:
            items: Any number; `ExplainSettings.batch` of them are explained at once.

        Returns:
            A `pyarrow.Table` with one row for each, in their order; see `rows.make_schema`.
        """
        rows = dict(self._explain(iter(items), [item.id for item in items]))
        return make_table([rows[index] for index in range(len(items))], self.description.form)

    def explain_rows(self, items: Iterable[Item]) -> Iterator[Row]:
        """Explain any number of inputs, of which only a few are in memory at once.

        Yields:
            The row of each, in their order. `rows.make_table` makes a table of rows.
        """
        ids: dict[int, str] = {}

        def keep_ids() -> Iterator[Item]:
            for index, item in enumerate(items):
                ids[index] = item.id
                yield item

        ready: dict[int, Row] = {}  # rows that came before their turn, within a batch
        turn = 0
        for index, row in self._explain(keep_ids(), ids):
            ready[index] = row
            while turn in ready:
                yield ready.pop(turn)
                del ids[turn]
                turn += 1

    def _explain(
        self, items: Iterator[Item], ids: Sequence[str] | Mapping[int, str]
    ) -> Iterator[tuple[int, Row]]:
        form, fingerprint = self.description.form, self.description.fingerprint
        for found in self._explainer.explain_batches(items):
            if isinstance(found, ExplainedInput):
                error = found.error or ""
                yield found.index, make_error_row(ids[found.index], error, form, fingerprint)
                continue
            (explanation,) = found.explanations.values()
            inputs = found.prepared.inputs
            mask = None if isinstance(inputs, Tensor) else inputs.get("attention_mask")
            maker = RowMaker(explanation, mask, form, fingerprint)
            for sample, index in enumerate(found.indices):
                name = ids[index]
                try:
                    row = maker.make(sample, name, found.prepared.notes[sample])
                except WhenceError as problem:
                    row = make_error_row(name, str(problem), form, fingerprint)
                yield index, row


def _check_weights(loaded: LoadedModel, description: RunDescription) -> None:
    if hash_weights(loaded.model) != description.depends_on["model weights"]:
        raise WhenceError(
            f"The model '{loaded.title}' has other weights here than where the run was started; "
            f"give every machine the same model."
        )
