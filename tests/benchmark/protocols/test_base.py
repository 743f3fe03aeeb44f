"""Options of protocols, and rows without a store."""

import dataclasses
import sys

import pytest
import torch

from tests.benchmark.helpers import choose_one, judge, read_samples
from whence import WhenceError
from whence.benchmark import build_protocol
from whence.benchmark.protocols.base import locate_batch


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


@pytest.mark.parametrize("view", ["model", "whole"])
@pytest.mark.parametrize(
    ("protocol", "figure"), [("segmentation", "energy_inside"), ("localization", "in_mask")]
)
def test_where_a_target_lies_is_judged_by_the_reading_for_that(vit, masked, protocol, figure, view):
    """Figures and pictures are of it, unless another reading is asked for."""
    protocol, samples = build_protocol(protocol, {"view": view}), read_samples(masked, 2)
    samples = [dataclasses.replace(one, label=None) for one in samples]
    found = {}
    for text in ("whence", "whence:reading=location", "whence:reading=evidence", "gae"):
        method = choose_one(text)
        rows = judge(protocol, vit, samples, method)
        _, shown = protocol.explain_example(vit, samples[0], method)
        found[text] = [row[figure] for row in rows]
        reading = {"whence:reading=evidence": "evidence", "gae": None}.get(text, "location")
        assert shown.settings.get("reading") == reading
    assert found["whence"] == found["whence:reading=location"]
    assert found["whence"] != found["whence:reading=evidence"]


def test_a_target_is_located_as_asked(vit, photos):
    (sample,) = read_samples(photos, 1)
    pixels = vit.prepare([sample.content]).inputs
    options = {"method": "whence", "reading": "location"}
    for target in (None, [2]):
        found = locate_batch(vit, pixels, choose_one("whence"), target)
        expected = vit.explainer.explain(pixels, target=target, **options)
        assert torch.equal(found.scores, expected.scores)
        assert found.target.tolist() == expected.target.tolist()
