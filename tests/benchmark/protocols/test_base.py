"""Options of protocols, and rows without a store."""

import sys

import pytest

from tests.benchmark.helpers import choose_one, judge, read_samples
from whence import WhenceError
from whence.benchmark import build_protocol


def test_options_are_checked():
    with pytest.raises(WhenceError, match=r"'fill' is 'zero' or .* joined by '\+', not 'grey'"):
        build_protocol("perturbation", {"fill": "grey"})
    with pytest.raises(WhenceError, match="segmentation benchmark has no option 'fill'"):
        build_protocol("segmentation", {"fill": "zero"})
    with pytest.raises(WhenceError, match="Did you mean 'trust'"):
        build_protocol("trusts", {})


def test_rows_need_no_storage(vit, photos, tmp_path, monkeypatch):
    """On a machine without pyarrow, rows are computed all the same."""
    from whence.benchmark.store import ResultStore

    for name in [name for name in sys.modules if name.split(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert (
        len(
            judge(
                build_protocol("perturbation", {}), vit, read_samples(photos, 2), choose_one("tiba")
            )
        )
        == 2
    )
    with pytest.raises(WhenceError, match=r"needs pyarrow.*whence\[benchmark\]"):
        ResultStore(tmp_path / "out", {})
