"""How often the model runs to rate scores; the ratings are tested with `search`."""

import pytest

from tests.zoo import HandWrittenViT, make_images
from whence import Explainer


@pytest.mark.parametrize("score", ["area", "ranked"])
def test_equal_rows_run_once(score):
    rows: list[int] = []

    class CountingViT(HandWrittenViT):
        def forward(self, image):
            rows.append(len(image))
            return super().forward(image)

    options = {"heads": ("mean",), "layers": ("mean",), "method": "search", "score": score}
    explainer = Explainer(CountingViT())
    for _ in range(2):  # the first time, the model is seen to treat samples one by one
        rows.clear()
        explainer.explain(make_images(32, 32), rows=("read",), **options)
    once = sum(rows)
    rows.clear()
    explainer.explain(make_images(32, 32), rows=("read",), classes=3, **options)
    # The scores are those of any class, so what is deleted is the same.
    assert sum(rows) == once
