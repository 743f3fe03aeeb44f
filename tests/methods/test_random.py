import pytest
import torch

from tests.zoo import CASES, HandWrittenViT, build_model, make_images, make_texts
from whence import Explainer, WhenceError


def draw_numbers(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("seed", [0, 5])
def test_images(seed):
    result = Explainer(HandWrittenViT().double()).explain(
        make_images(32, 32).double(), classes=[0, 3], method="random", seed=seed
    )
    # The class token takes the first number.
    assert torch.equal(result.scores, draw_numbers(17, seed)[1:].expand(3, 2, 16))


def test_the_global_generator_stays_as_it_was():
    explainer, pixels = Explainer(HandWrittenViT()), make_images(32, 32)
    before = torch.random.get_rng_state()
    explainer.explain(pixels, method="random")
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_changes_nothing(side):
    inputs = make_texts()
    if side == "left":
        inputs = {key: value.flip(1) for key, value in inputs.items()}
    result = Explainer(build_model(CASES["Bert-sdpa"]).double()).explain(inputs, method="random")
    for scores, mask in zip(result.scores, inputs["attention_mask"].bool(), strict=True):
        assert torch.equal(scores[mask], draw_numbers(int(mask.sum())))
        assert not scores[~mask].any()


def test_average_pooling():
    case = CASES["timm-vit-average-fused"]
    result = Explainer(build_model(case)).explain(case.inputs(), method="random")
    assert torch.equal(result.scores, draw_numbers(16).float().expand(3, 16))


def test_a_seed_that_is_not_a_number():
    with pytest.raises(
        WhenceError, match="Option 'seed' of method 'random' must be a whole number"
    ):
        Explainer(HandWrittenViT()).explain(make_images(32, 32), method="random", seed="x")
