"""Explain inputs and give rows: what a local run and the workers of a cluster do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from whence._util.fingerprint import hash_weights
from whence.distributed.rows import Row, make_error_row, make_row, make_table
from whence.distributed.settings import RunDescription, RunSettings, describe_run
from whence.errors import WhenceError
from whence.models import LoadedModel
from whence.pipeline import BatchExplainer


@dataclass(frozen=True)
class Item:
    """One input of a run that is not read yet.

    Attributes:
        id: Its name in the results.
        read: Reads the photo or the text; a `WhenceError` says why it cannot.
    """

    id: str
    read: Callable[[], Image.Image | str]


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
        form, fingerprint = self.description.form, self.description.fingerprint
        rows: dict[int, Row] = {}
        for one in self._explainer.explain(items):
            name, error = items[one.index].id, one.error
            if one.prepared is not None:
                (explanation,) = one.explanations.values()
                try:
                    notes = one.prepared.notes[0]
                    rows[one.index] = make_row(name, explanation, notes, form, fingerprint)
                    continue
                except WhenceError as problem:
                    error = str(problem)
            rows[one.index] = make_error_row(name, error or "", form, fingerprint)
        return make_table([rows[index] for index in range(len(items))], form)


def _check_weights(loaded: LoadedModel, description: RunDescription) -> None:
    if hash_weights(loaded.model) != description.depends_on["model weights"]:
        raise WhenceError(
            f"The model '{loaded.title}' has other weights here than where the run was started; "
            f"give every machine the same model."
        )
