"""Figures on real photos and weights, as measured before with other code."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageClassification

from whence import Explainer
from whence.metrics import segmentation as s


@pytest.mark.slow
def test_raw_attention_segments_pets_as_well_as_it_did(data):
    model = AutoModelForImageClassification.from_pretrained(data / "vit_tiny_in1k_hf").eval()
    with open(data / "pets" / "labels.csv", encoding="utf-8") as file:
        names = [row["image"] for row in csv.DictReader(file)]
    size, parts = (224, 224), []
    for start in range(0, len(names), 25):
        pixels, trimaps = [], []
        for name in names[start : start + 25]:
            photo = Image.open(data / "pets" / "images" / f"{name}.jpg").convert("RGB")
            pixels.append(torch.tensor(np.array(photo.resize(size, Image.Resampling.BICUBIC))))
            trimap = Image.open(data / "pets" / "trimaps" / f"{name}.png")
            trimaps.append(torch.tensor(np.array(trimap.resize(size, Image.Resampling.NEAREST))))
        inputs = torch.stack(pixels).permute(0, 3, 1, 2) / 127.5 - 1
        masks = torch.tensor([255, 1, 0, 255])[torch.stack(trimaps).long()]
        maps = Explainer(model).explain(inputs, method="raw_attention").heatmap(size)
        parts.append(s.compare_with_masks(maps, masks))
    found = s.pool_figures({name: torch.cat([part[name] for part in parts]) for name in parts[0]})
    assert 100 * found["pixel_accuracy"] == pytest.approx(76.34, abs=0.02)
    assert 100 * found["mIoU"] == pytest.approx(56.49, abs=0.02)
    assert 100 * found["mAP"] == pytest.approx(83.10, abs=0.02)
