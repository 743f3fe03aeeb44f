import numpy as np
import pytest
import torch
from transformers import ViTForImageClassification

from tests.faithfulness.helpers import area_of, explain_by
from tests.saved import make_photo
from whence.faithfulness import measure


@pytest.mark.parametrize("order", ["most", "least"])
def test_photo_curves_are_those_of_a_loop(vit, image_model, order):
    """One plain forward a step, on pixels blackened before normalisation."""
    prepared, explanations = explain_by(vit, make_photo(), "gae", classes=[2, 0])
    found = measure(vit, prepared, explanations, draws=0)
    model = ViTForImageClassification.from_pretrained(image_model).float().eval()
    for at, target in enumerate((2, 0)):
        heat = explanations["gae"].heatmap()[0, at].flatten()
        ranked = heat.argsort(descending=order == "most", stable=True)
        values = []
        for tenths in range(10):
            pixels = prepared.inputs.clone().flatten(2)
            pixels[:, :, ranked[: 1024 * tenths // 10]] = (0 - 0.5) / 0.5
            with torch.no_grad():
                logits = model(pixels.reshape(1, 3, 32, 32)).logits[0]
            values.append(float(logits.double().softmax(0)[target]))
        curves = found.get("gae", target)
        assert curves.get_curve(order) == pytest.approx(values, abs=1e-6)
        assert curves.auc(order) == pytest.approx(area_of(values), abs=1e-4)


def test_a_masked_photo_is_black_where_the_most_relevant_pixels_were(vit):
    prepared, explanations = explain_by(vit, make_photo(), "gae")
    curves = measure(vit, prepared, explanations, draws=1).get("gae")
    whole = np.asarray(curves.get_input(0))
    assert whole.shape == (32, 32, 3)
    seen = ((prepared.inputs[0] * 0.5 + 0.5) * 255).permute(1, 2, 0).numpy()
    assert np.abs(whole - seen).max() <= 0.51
    for order in ("most", "least", "random"):
        gone = curves.get_mask(5, order)
        assert gone.shape == (32, 32)
        assert int(gone.sum()) == 512
        half = np.asarray(curves.get_input(5, order))
        assert (half[gone.numpy()] == 0).all()
        assert (half[~gone.numpy()] == whole[~gone.numpy()]).all()
    heat = explanations["gae"].heatmap()[0]
    assert heat[curves.get_mask(3)].min() >= heat[~curves.get_mask(3)].max()
