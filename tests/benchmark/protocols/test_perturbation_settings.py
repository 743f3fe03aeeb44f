"""Several units, fillings and scores of the perturbation protocol in one run."""

import pytest
import torch

from tests.benchmark.helpers import choose_one, judge, read_samples
from whence import WhenceError, benchmark, datasets
from whence.benchmark import build_protocol
from whence.metrics.imputation import draw_noise
from whence.metrics.pixels import fill_pixels

FILLS = ("zero", "mean", "blur", "dataset", "road")


def build(vit, photos, **options):
    protocol, dataset = build_protocol("perturbation", options), datasets.load(photos)
    protocol.fit(vit, dataset, dataset.list_names(), None)
    return protocol


@pytest.fixture(scope="module")
def rows(vit, photos):
    several = build(vit, photos, fill="+".join(FILLS), unit=["pixels", "patches"], insertion=True)
    return judge(several, vit, read_samples(photos, 2), choose_one("gae"))


@pytest.mark.parametrize("unit", ["pixels", "patches"])
@pytest.mark.parametrize("fill", FILLS)
def test_each_setting_has_the_figures_that_it_has_alone(vit, photos, rows, unit, fill):
    alone = build(vit, photos, fill=fill, unit=unit, insertion=True)
    for row, one in zip(
        rows, judge(alone, vit, read_samples(photos, 2), choose_one("gae")), strict=True
    ):
        shared = {"sample", "label", "predicted", "clean", "patches"} & set(one)
        assert {row[name] == one[name] for name in shared} == {True}
        # Of several settings, only those curves are kept that are drawn.
        curves = {name for name in one if isinstance(one[name], list)}
        drawn = {"positive_predicted_accuracy", "negative_predicted_accuracy"}
        assert drawn < curves
        figures = set(one) - shared - (curves - drawn)
        assert {"difference_target_logit_auc", "insertion_predicted"} <= figures
        for name in figures:
            assert row[f"{name}_{unit}_{fill}"] == pytest.approx(one[name], abs=2e-3), name


@pytest.mark.parametrize("fill", FILLS)
def test_deletion_and_insertion_are_plain_with_every_filling(vit, photos, rows, fill):
    (sample, _), row = read_samples(photos, 2), rows[0]
    prepared = vit.prepare([sample.content])
    every = [vit.prepare([one.content]).inputs[0] for one in read_samples(photos)]
    color = (torch.stack(every) * 0.5 + 0.5).mean((0, 2, 3)).tolist()
    noise = draw_noise([sample.name], (3, 32, 32))
    scores = vit.explain(prepared, method="gae").scores[0].tolist()
    order = sorted(range(16), key=lambda patch: (-scores[patch], patch))
    opposite = sorted(range(16), key=lambda patch: (scores[patch], patch))
    areas = {}
    for kind in ("deletion", "insertion"):
        chances = []
        for tenths in range(11):
            # Inserting the highest is taking back what deletes the lowest first.
            gone = (
                order[: 16 * tenths // 10]
                if kind == "deletion"
                else opposite[: 16 * (10 - tenths) // 10]
            )
            hidden = torch.tensor([[patch in gone for patch in range(16)]]).reshape(1, 4, 4)
            hidden = hidden.repeat_interleave(8, 1).repeat_interleave(8, 2)
            filled = fill_pixels(prepared.inputs * 0.5 + 0.5, hidden, fill, color, noise)
            with torch.no_grad():
                logits = vit.model((filled - 0.5) / 0.5).logits[0].double()
            chances.append(float(logits.softmax(0)[row["predicted"]]))
        areas[kind] = 10 * (sum(chances) - (chances[0] + chances[-1]) / 2)
    for kind, area in areas.items():
        assert row[f"{kind}_predicted_patches_{fill}"] == pytest.approx(area, abs=1e-2)


def test_the_logit_is_not_times_100(vit, photos):
    judged = build_protocol("perturbation", {"unit": "patches", "score": "logit"})
    (row,) = judge(judged, vit, read_samples(photos, 1), choose_one("gae"))
    curve = row["negative_predicted_logit"]
    area = 0.1 * (sum(curve) - (curve[0] + curve[-1]) / 2)
    assert row["negative_predicted_logit_auc"] == pytest.approx(area)


def test_explanations_are_made_once_for_all(vit, photos, monkeypatch):
    calls = []
    explain = benchmark.protocols.perturbation.explain_batch
    monkeypatch.setattr(
        "whence.benchmark.protocols.perturbation.explain_batch",
        lambda *given, **options: calls.append(1) or explain(*given, **options),
    )
    several = build_protocol("perturbation", {"fill": "zero+mean", "unit": "pixels+patches"})
    batch = read_samples(photos, 3)
    found = judge(several, vit, batch, choose_one("rollout"))
    assert len(found) == 3
    assert len(calls) == 1


def test_names_tell_what_there_are_several_of():
    def name(**options):
        metrics = build_protocol("perturbation", options).list_metrics()
        return {metric.name: metric for metric in metrics}

    one = name(fill="blur", unit="patches")
    assert {"positive, predicted", "difference, target", "insertion, predicted"} <= set(one)
    assert "difference, predicted, logit" in one
    assert not one["difference, predicted, logit"].shown
    several = name(fill="zero+blur")
    assert several["difference, predicted, blur"].columns == ("difference_predicted_auc_blur",)
    shown = [metric.name for metric in several.values() if metric.shown]
    assert shown == ["difference, predicted, zero", "difference, predicted, blur"]
    assert [metric.name for metric in several.values() if metric.ranked] == shown
    scores = name(fill="zero,road", unit=("pixels", "patches"), score=["accuracy", "logit"])
    assert "difference, target, patches, road, accuracy" in scores
    assert scores["positive, predicted, pixels, zero, logit"].better == "lower"
    assert build_protocol("perturbation", {"score": "logit"}).find_main()[0] in name(score="logit")


def test_unknown_values_are_refused_with_those_there_are():
    for options in ({"fill": "zero+pink"}, {"unit": "words"}, {"score": "loss"}, {"fill": ""}):
        with pytest.raises(WhenceError, match="several of these joined"):
            build_protocol("perturbation", options)


@pytest.mark.slow
def test_a_run_of_several_settings_has_a_page_with_examples(vit, photos, tmp_path):
    result = benchmark.run(
        "perturbation", vit, photos, "gae", limit=3, out=tmp_path / "run", fill="zero,road"
    )
    page = (tmp_path / "run" / "report.html").read_text()
    assert "difference, predicted, road" in page
    assert "positive predicted probability auc zero" in page
    assert (tmp_path / "run" / "curves.png").exists()
    assert any("ROAD" in note for note in result.table.notes)
