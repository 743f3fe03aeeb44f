import numpy as np
import pytest

from tests.saved import make_photo
from whence import explain

pytest.importorskip("ray.data")


@pytest.mark.slow
def test_photos_of_a_pipeline_are_explained_in_actors(ray_cluster, image_model, tmp_path):
    from whence.ray import Explain

    for seed in range(6):
        make_photo(seed=seed).save(tmp_path / f"{seed}.png")
    dataset = ray_cluster.data.read_images(str(tmp_path), include_paths=True)

    rows = dataset.map_batches(
        Explain,
        fn_constructor_kwargs={"model": str(image_model), "classes": 2},
        batch_format="numpy",
        batch_size=4,
        compute=ray_cluster.data.ActorPoolStrategy(size=2),
    ).take_all()

    assert sorted(row["id"] for row in rows) == [str(tmp_path / f"{n}.png") for n in range(6)]
    for row in rows:
        expected = explain(row["id"], image_model, classes=2)
        assert list(row["name"]) == expected.target_names[0]
        np.testing.assert_allclose(row["scores"], expected.scores.ravel(), atol=1e-6)
