import json

import pytest

from tests.benchmark.helpers import read_samples
from whence import WhenceError, datasets
from whence.benchmark.mean_color import FILE, measure_mean_color


def test_the_mean_is_that_of_all_photos_as_the_model_sees_them(cropping_vit, photos):
    dataset = datasets.load(photos)
    found = measure_mean_color(cropping_vit, dataset, dataset.list_names())
    scale = cropping_vit.preprocessor.scale
    totals, count = [0.0, 0.0, 0.0], 0
    for sample in read_samples(photos):
        pixels = cropping_vit.prepare([sample.content]).inputs[0]
        assert pixels.shape == (3, 32, 32)
        for channel in range(3):
            values = pixels[channel].double() * scale.std[channel] + scale.mean[channel]
            totals[channel] += float(values.sum())
        count += 32 * 32
    assert found == pytest.approx([total / count for total in totals], abs=1e-6)


def test_it_is_kept_for_the_same_photos_only(vit, photos, tmp_path):
    dataset = datasets.load(photos)
    names = dataset.list_names()
    found = measure_mean_color(vit, dataset, names, tmp_path)
    file = tmp_path / FILE
    content = json.loads(file.read_text())
    assert (content["mean color"], content["photos"]) == (list(found), len(names))
    file.write_text(json.dumps(content | {"mean color": [0.1, 0.2, 0.3]}))
    assert measure_mean_color(vit, dataset, names, tmp_path) == (0.1, 0.2, 0.3)
    of_two = measure_mean_color(vit, dataset, names[:2], tmp_path)
    assert of_two not in (found, (0.1, 0.2, 0.3))
    for damaged in ("", "[]", '{"of": 1}'):
        file.write_text(damaged)
        assert measure_mean_color(vit, dataset, names, tmp_path) == found


def test_photos_that_cannot_be_read_do_not_count(vit, partly_broken, tmp_path):
    dataset = datasets.load(partly_broken)
    names = dataset.list_names()
    readable = [name for name in names if "dog1" not in name]
    assert len(readable) == len(names) - 1
    assert measure_mean_color(vit, dataset, names) == measure_mean_color(vit, dataset, readable)
    (broken,) = set(names) - set(readable)
    with pytest.raises(WhenceError, match="No photo can be read"):
        measure_mean_color(vit, dataset, [broken])
