"""Runs of the perturbation benchmark, and the files that they write."""

from pathlib import Path

from whence import benchmark

METHODS = "tiba,random"


def list_files(folder: Path) -> list[Path]:
    return sorted((folder / "parts").glob("*/*.parquet"))


def read_table(folder: Path) -> str:
    return (folder / "table.csv").read_text()


def run_again(vit, photos, out, **changes):
    return benchmark.run(
        "perturbation", vit, photos, **{"methods": METHODS, "batch": 2, "out": out} | changes
    )
