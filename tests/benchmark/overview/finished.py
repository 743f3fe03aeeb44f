"""Finished runs made of numbers, without a model."""

from pathlib import Path

import numpy as np

from whence.benchmark import build_protocol
from whence.benchmark.columns import to_columns
from whence.benchmark.overview.runs import FinishedRun
from whence.benchmark.table import sort_samples, tabulate


def make_run(levels, model="vit", dataset="pets", samples=30, seed=0, noise=0.05):
    """A run of the rationale benchmark: the mean figure of each method, and noise on samples.

    The level of a method is its token-F1 and comprehensiveness, and 1 less it its sufficiency.
    """
    generator = np.random.default_rng(seed)
    shared = generator.normal(0, 0.1, samples)
    results = {}
    for method, level in levels.items():
        values = level + shared + generator.normal(0, noise, samples)
        rows = [
            {
                "sample": f"s{at:03}",
                "f1_mean": float(value),
                "comprehensiveness": float(value + generator.normal(0, noise)),
                "sufficiency": float(1 - value + generator.normal(0, noise)),
            }
            for at, value in enumerate(values)
        ]
        results[method] = sort_samples(to_columns(rows))
    protocol = build_protocol("rationale", {})
    table = tabulate(protocol, "", results)
    return FinishedRun(protocol, model, dataset, table, results, {"seed": 0}, Path("nowhere"))
