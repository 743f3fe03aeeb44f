"""The search written plainly for one sample, and small models to search on."""

import pytest
import torch
from torch import Tensor, nn

from tests.zoo import HandWrittenViT

FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5)


def build_small_vit(average: bool = False) -> nn.Module:
    """Two layers of two heads; the class token is read, or all tokens are."""

    class Averages(HandWrittenViT):
        def forward(self, image):
            p = self.patch
            x = image.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3)
            x = self.embed(x.flatten(1, 2)) + self.positions[1:]
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x).mean(1))

    torch.manual_seed(3)
    model = (Averages if average else HandWrittenViT)(heads=2)
    model.blocks = model.blocks[:2]
    with torch.no_grad():
        for block in model.blocks:
            block.qkv *= 2
    return model.double().eval()


def build_small_bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        vocab_size=100,
        max_position_embeddings=64,
        num_labels=3,
    )
    torch.manual_seed(1)
    model = transformers.BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.double()


def list_candidates(attention: list[Tensor], gradient: list[Tensor], read: list[float]):
    """Each setting with its scores; maps are (heads, tokens, tokens), of one sample."""
    tokens = attention[0].shape[-1]
    identity = torch.eye(tokens, dtype=torch.float64)
    for heads in ("mean", "gradient", "0", "1"):
        maps = []
        for a, g in zip(attention, gradient, strict=True):
            if heads == "mean":
                maps.append((a[0] + a[1]) / 2)
            elif heads == "gradient":
                maps.append(((a[0] * g[0]).relu() + (a[1] * g[1]).relu()) / 2)
            else:
                maps.append(a[int(heads)])
        with_skip = [(identity + m) / (identity + m).sum(1, keepdim=True) for m in maps]
        joined = {
            "mean": (maps[0] + maps[1]) / 2,
            "product": maps[1] @ maps[0],
            "rollout": with_skip[1] @ with_skip[0],
            "0": maps[0],
            "1": maps[1],
        }
        for layers, one in joined.items():
            weighted = sum(w * one[i] for i, w in enumerate(read))
            yield (heads, layers, "read"), weighted
            yield (heads, layers, "to"), sum(w * one[:, i] for i, w in enumerate(read))
            yield (heads, layers, "mean"), sum(one) / tokens
            yield (heads, layers, "max"), torch.stack(list(one)).amax(0)


def rate_area(scores: Tensor, places: list[int], probability) -> float:
    total = 0.0
    for fraction in FRACTIONS:
        count = max(1, round(fraction * len(places)))
        highest = sorted(places, key=lambda t: -scores[t].item())[:count]
        lowest = sorted(places, key=lambda t: scores[t].item())[:count]
        total += probability(lowest) - probability(highest)
    return total / len(FRACTIONS)


def rate_ranked(scores: Tensor, places: list[int], probability) -> float:
    total = 0.0
    for token in places:
        rank = sum(scores[other] >= scores[token] for other in places)
        total += (probability([]) - probability([token])) / int(rank)
    return total


def find_best(candidates, score: str, places: list[int], probability):
    """Setting, scores and faithfulness of the best candidate, the first of equals."""
    known = {}

    def look_up(deleted: list[int]) -> float:
        key = tuple(sorted(deleted))
        if key not in known:
            known[key] = probability(list(key))
        return known[key]

    def rate(scores: Tensor) -> float:
        # Without what is but rounding: a map may be the same everywhere.
        scores = (scores / (scores[places].max() or 1)).round(decimals=12)
        return (rate_area if score == "area" else rate_ranked)(scores, places, look_up)

    # Single heads and layers come after what joins all of them.
    order = sorted(candidates, key=lambda c: c[0][0].isdigit() or c[0][1].isdigit())
    all_rated = [(*one, rate(one[1])) for one in order]
    most = max(faithful for _, _, faithful in all_rated)
    return next(one for one in all_rated if one[2] > most - 1e-14)
