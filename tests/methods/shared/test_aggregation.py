import pytest
import torch

from tests.methods.search_formula import build_small_bert, build_small_vit
from tests.zoo import HandWrittenViT, make_images, make_texts
from whence import Explainer, WhenceError
from whence.methods.search import Search
from whence.methods.shared.aggregation import HEADS, LAYERS, ROWS, list_aggregations


def test_aggregations_over_all_come_first_and_the_seed_draws_the_others():
    every = list_aggregations(HEADS, LAYERS, ROWS, (12, range(12)))
    joint = [one for one in every if one.is_joint]
    assert len(joint) == 2 * 3 * 4
    assert every[: len(joint)] == joint
    assert every[0] == ("mean", "mean", "read")
    drawn = [Search(seed=seed)._draw_within_budget(every) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    for chosen in drawn:
        assert chosen[: len(joint)] == joint
        assert len(set(chosen)) == 64
        assert [one for one in every if one in set(chosen)] == chosen
    assert Search(budget=3)._draw_within_budget(every) == joint[:3]
    assert Search(budget=len(every))._draw_within_budget(every) == every


def test_the_authors_settings_of_bert_base():
    layers = ("mean", "product", "each")
    every = list_aggregations(("mean", "each"), layers, ROWS, (12, range(12)))
    assert len(every) == len(set(every)) == 728


@pytest.mark.parametrize("rows", ["read", "to", "mean", "max"])
@pytest.mark.parametrize("heads", ["mean", "gradient"])
def test_no_row_counts_padding(heads, rows):
    explainer, inputs = Explainer(build_small_bert()), make_texts()
    options = {"method": "search", "target": 0, "heads": [heads], "rows": [rows]}
    for layers in ("mean", "product", "rollout"):
        padded = explainer.explain(inputs, layers=[layers], **options)
        for n, length in enumerate((10, 6, 9)):
            ids = inputs["input_ids"][n : n + 1, :length]
            alone = explainer.explain({"input_ids": ids}, layers=[layers], **options)
            # Words have no gradient where only the first token's row of the last map is read.
            assert alone.scores.max() > 0 or (heads, rows) == ("gradient", "to")
            assert torch.allclose(padded.scores[n, :length], alone.scores[0], rtol=1e-8)


def test_a_range_of_layers_is_that_of_a_model_without_the_others():
    model, pixels = build_small_vit(), make_images(32, 32).double()
    explainer = Explainer(model)
    options = {"method": "search", "rows": ("max",)}
    last = explainer.explain(pixels, layers=("1",), **options)
    for layers in ("mean", "product", "each"):
        ranged = explainer.explain(pixels, layers=(layers,), first_layer=1, **options)
        assert torch.allclose(ranged.scores, last.scores)
    first = explainer.explain(pixels, layers=("product",), last_layer=0, **options)
    single = explainer.explain(pixels, layers=("0",), **options)
    assert torch.allclose(first.scores, single.scores)
    assert not torch.allclose(first.scores, last.scores)


def test_maps_of_different_sizes():
    class Merges(HandWrittenViT):
        def forward(self, image):
            x = self.embed(image.unfold(2, 8, 8).unfold(3, 8, 8).reshape(len(image), 16, -1))
            x = self.blocks[0](x)
            return self.head(self.blocks[1](x[:, ::2] + x[:, 1::2])[:, 0])

    with pytest.raises(WhenceError, match="is not within one sequence of tokens"):
        Explainer(Merges()).explain(make_images(32, 32), method="search")
