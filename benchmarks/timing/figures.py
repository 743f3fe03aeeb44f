"""Figures of rounds: the fastest, the median, and how far rounds spread."""

import statistics
from collections.abc import Sequence
from typing import Any

NOISY = 10.0  # percent; a figure that spreads more is marked


def measure_spread(values: Sequence[float]) -> float | None:
    """Half the distance between the quartiles, in percent of the median; None of one value."""
    if len(values) < 2:
        return None
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return 50 * (high - low) / middle


def divide_rounds(times: Sequence[float], others: Sequence[float]) -> list[float]:
    """Ratios round by round, of the rounds that both have."""
    return [one / other for one, other in zip(times, others, strict=False)]


def summarize(times: Sequence[float], baseline: Sequence[float] = ()) -> dict[str, Any]:
    """The figures of a row: of its own rounds, and of their ratios with a baseline's rounds.

    Args:
        times: Milliseconds of each round.
        baseline: The same of what the row is compared with, measured in turns with it.
    """
    return {
        "rounds": len(times),
        "fastest": min(times),
        "median": statistics.median(times),
        "spread": measure_spread(times),
        "ratio": min(times) / min(baseline) if baseline else None,
        "ratio spread": measure_spread(divide_rounds(times, baseline)),
    }


def is_noisy(spread: float | None) -> bool:
    """Whether rounds differ so much that the figure should not be relied on."""
    return spread is not None and spread > NOISY
