"""Rows of the SRG protocol against their definition, written plainly."""

import dataclasses

import numpy as np
import pytest
import torch

from tests.benchmark.helpers import choose_one, judge, read_samples
from whence import WhenceError, benchmark, datasets
from whence.benchmark import build_protocol
from whence.benchmark.protocols.deletion import describe_patches, score_units


def fit(options, vit, photos):
    protocol, dataset = build_protocol("srg", options), datasets.load(photos)
    protocol.fit(vit, dataset, dataset.list_names(), None)
    return protocol


def average_photos(vit, photos):
    """The mean colour of all photos between 0 and 1, as the model sees them."""
    pixels = [vit.prepare([sample.content]).inputs[0] for sample in read_samples(photos)]
    return (torch.stack(pixels).double() * 0.5 + 0.5).mean((0, 2, 3)).float()


def follow_plainly(vit, pixels, scores, sign, counts, filling, index):
    """The logit of a class when patches are deleted one count after the other."""
    ranking = sorted(range(16), key=lambda patch: (sign * scores[patch], patch))
    logits = []
    for count in counts:
        changed = pixels.clone()
        for patch in ranking[:count]:
            y, x = 8 * (patch // 4), 8 * (patch % 4)
            changed[0, :, y : y + 8, x : x + 8] = ((filling - 0.5) / 0.5)[:, None, None]
        with torch.no_grad():
            logits.append(float(vit.model(changed).logits[0, index]))
    return logits


@pytest.mark.parametrize(("steps", "target"), [(16, "predicted"), (5, "label"), (20, "predicted")])
def test_srg_is_what_the_paper_says(vit, photos, steps, target):
    protocol = fit({"steps": steps, "target": target}, vit, photos)
    batch, method, filling = (
        read_samples(photos)[::3],
        choose_one("tiba"),
        average_photos(vit, photos),
    )
    rows = judge(protocol, vit, batch, method)
    counts = [0, *(max(1, round(16 * step / steps)) for step in range(1, steps + 1))]
    for sample, row in zip(batch, rows, strict=True):
        prepared = vit.prepare([sample.content])
        label = {"cat": 0, "dog": 1, "crane": 2}[sample.label]
        predicted = int(vit.model(prepared.inputs).logits.argmax())
        index = label if target == "label" else predicted
        assert (row["target"], row["patches"]) == (index, 16)
        scores = vit.explain(prepared, target=index, method="tiba").scores[0].tolist()
        highest, lowest = (
            follow_plainly(vit, prepared.inputs, scores, sign, counts, filling, index)
            for sign in (-1, 1)
        )
        assert row["highest_first"] == pytest.approx(highest, abs=1e-4)
        assert row["lowest_first"] == pytest.approx(lowest, abs=1e-4)
        areas = [
            sum(
                (counts[i + 1] - counts[i]) / 16 * (curve[i] + curve[i + 1]) / 2
                for i in range(steps)
            )
            for curve in (lowest, highest)
        ]
        assert [row["lif"], row["mif"]] == pytest.approx(areas, abs=1e-4)
        assert row["srg"] == pytest.approx(areas[0] - areas[1], abs=1e-4)


def test_a_constant_map_gains_nothing(vit, photos, monkeypatch):
    protocol, batch = fit({}, vit, photos), read_samples(photos, 2)

    def flatten(*given, **options):
        explanation = explain(*given, **options)
        return dataclasses.replace(explanation, scores=torch.ones_like(explanation.scores))

    explain = benchmark.protocols.srg.explain_batch
    monkeypatch.setattr("whence.benchmark.protocols.srg.explain_batch", flatten)
    rows = judge(protocol, vit, batch, choose_one("gae"))
    assert [row["srg"] for row in rows] == [0, 0]
    assert rows[0]["highest_first"] == rows[0]["lowest_first"]


def test_wrong_requests_are_refused_in_a_sentence(vit, photos):
    (sample,) = read_samples(photos, 1)
    with pytest.raises(WhenceError, match="'steps' is a number from 1, not 0"):
        build_protocol("srg", {"steps": 0})
    with pytest.raises(WhenceError, match="call the protocol's `fit` first"):
        judge(build_protocol("srg", {}), vit, [sample], choose_one("gae"))
    unlabelled = dataclasses.replace(sample, label=None)
    with pytest.raises(WhenceError, match="has no label"):
        build_protocol("srg", {"target": "label"}).prepare(vit, unlabelled)
    explanation = vit.explain(vit.prepare([sample.content]), method="gae")
    with pytest.raises(WhenceError, match="no grid of patches"):
        score_units(dataclasses.replace(explanation, grid=None), "patches")


def test_methods_that_score_other_patches_are_named():
    columns = {"a": [16.0, 16.0], "b": [64.0, 64.0]}
    results = {method: {"patches": np.array(counts)} for method, counts in columns.items()}
    (note,) = describe_patches(results)
    assert "(a 16, b 64)" in note
    assert describe_patches({"a": results["a"], "c": results["a"]}) == []


def test_a_run_has_a_table_and_is_resumed(vit, photos, tmp_path, quick):
    first = benchmark.run("srg", vit, photos, "tiba", limit=4, out=tmp_path / "run")
    assert (tmp_path / "run" / "mean_color.json").exists()
    again = benchmark.run("srg", vit, photos, "tiba,random", limit=4, out=tmp_path / "run")
    figures = again.table.to_dict()
    assert figures["tiba"]["SRG"]["value"] == first.table.to_dict()["tiba"]["SRG"]["value"]
    assert figures["random"]["SRG"]["samples"] == 4
    values = {name: figures["tiba"][name]["value"] for name in ("SRG", "LIF", "MIF")}
    assert values["SRG"] == pytest.approx(values["LIF"] - values["MIF"])
    assert any("mean colour" in note for note in again.table.notes)
    assert again.table.title.startswith("SRG: ")


@pytest.mark.slow
def test_reslrp_gains_more_than_attnlrp_on_a_trained_model(data, tmp_path, quick):
    model, photos, out = data / "vit_tiny_in1k_hf", data / "imagenet", tmp_path / "run"
    result = benchmark.run("srg", str(model), photos, "reslrp,attnlrp", limit=30, out=out, steps=10)
    figures = result.table.to_dict()
    assert figures["reslrp"]["SRG"]["value"] > figures["attnlrp"]["SRG"]["value"] + 2
    assert figures["attnlrp"]["SRG"]["verdict"] == "worse"
