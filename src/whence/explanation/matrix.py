"""Scores as a table: what was explained by what it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from whence.errors import WhenceError
from whence.explanation.parts import ExplainedClass
from whence.layout import Tokens
from whence.layout.grouping import Grouping, TokenGroup, group_tokens

if TYPE_CHECKING:
    from pandas import DataFrame

REST, OUTPUT = "rest", "output"
"""Names of the columns of tokens that are in no passage: of the prompt, and of the output."""


@dataclass(frozen=True)
class ScoreMatrix:
    """Scores of groups of tokens, for each thing that was explained.

    Attributes:
        rows: Names of what was explained: generated tokens, words or sentences; or targets.
        columns: Names of what it came from: tokens, words, sentences or passages.
        values: (rows, columns), the sums of the tokens' scores.
        probabilities: Of each row, where known. That of a word is the product of its tokens'.
        row_groups: The tokens of each row; empty for targets that are none.
        column_groups: The tokens of each column.
    """

    rows: list[str]
    columns: list[str]
    values: NDArray[np.float64]
    probabilities: list[float | None]
    row_groups: list[TokenGroup]
    column_groups: list[TokenGroup]

    @property
    def totals(self) -> dict[str, float]:
        """The sum over all rows by the names of columns: of columns of one name, together."""
        sums: dict[str, float] = {}
        for name, value in zip(self.columns, self.values.sum(0).tolist(), strict=True):
            sums[name] = sums.get(name, 0.0) + value
        return sums

    def to_records(self) -> list[dict[str, object]]:
        """One record for each row and column: names, numbers, probability and score."""
        return [
            {
                "row": row,
                "target": name,
                "probability": probability,
                "column": column,
                "source": source,
                "score": float(self.values[row, column]),
            }
            for row, (name, probability) in enumerate(
                zip(self.rows, self.probabilities, strict=True)
            )
            for column, source in enumerate(self.columns)
        ]


def tabulate_classes(
    classes: Sequence[ExplainedClass], tokens: Tokens | None, sample: int, by: Grouping
) -> ScoreMatrix:
    """The table of the explained classes of a text."""
    scores = np.stack([one.scores for one in classes])
    length = scores.shape[1]
    columns = group_tokens(tokens or name_positions(length, sample), sample, by, (length,))
    columns = columns if isinstance(by, str) else add_rest(columns, length)
    return ScoreMatrix(
        [one.name for one in classes],
        [group.name for group in columns],
        sum_columns(scores, columns),
        [one.probability for one in classes],
        [],
        columns,
    )


def make_dataframe(records: Sequence[dict[str, object]]) -> DataFrame:
    """Make a table of pandas, one line for each record.

    Raises:
        WhenceError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise WhenceError("pandas is not installed here: pip install pandas.") from None
    return pandas.DataFrame(records)


def add_rest(groups: Sequence[TokenGroup], length: int, stop: int = 0) -> list[TokenGroup]:
    """Passages, and after them all tokens that are in none: the rest, and the output if it has any.

    Args:
        groups: The passages.
        length: Number of tokens of the text or the prompt.
        stop: The number of its tokens with those of the output, if there is one.
    """
    held = {at for group in groups for at in group.tokens}
    rest = TokenGroup(REST, tuple(at for at in range(length) if at not in held))
    output = TokenGroup(OUTPUT, tuple(at for at in range(length, stop) if at not in held))
    return [*groups, rest, *([output] if stop else [])]


def sum_columns(scores: NDArray[np.float64], groups: Sequence[TokenGroup]) -> NDArray[np.float64]:
    """Sum scores, (rows, tokens), over the tokens of each group: (rows, groups)."""
    sums = [scores[:, list(group.tokens)].sum(1) for group in groups]
    return np.stack(sums, 1) if sums else np.zeros((len(scores), 0))


def name_positions(count: int, sample: int) -> Tokens:
    """Tokens whose strings are not known, named by their positions."""
    strings = [f"#{position}" for position in range(count)]
    return Tokens([strings] * (sample + 1), [list(range(count))] * (sample + 1))
