import copy

import numpy as np
import pytest
import torch
from captum.metrics import sensitivity_max
from scipy import stats
from torch import Tensor, nn

from tests.zoo import CASES, build_model
from whence import Explainer, WhenceError
from whence.metrics import trust as t

RADIUS, DRAWS = 0.3, 6


def squares(inputs: Tensor) -> Tensor:
    return inputs**2 * torch.arange(1.0, 1 + inputs.shape[-1])


def test_sensitivity_is_captums_on_the_same_noise():
    inputs = torch.randn(4, 5, 7)
    found = t.sensitivity(squares, inputs, RADIUS, DRAWS, seed=9)
    generator = torch.Generator().manual_seed(9)
    noise = [
        (2 * torch.rand(inputs.shape, generator=generator, dtype=torch.float64) - 1) * RADIUS
        for _ in range(DRAWS)
    ]
    assert all(n.abs().max() <= RADIUS for n in noise)
    draws = iter(noise)
    expected = sensitivity_max(
        lambda given: (squares(given[0] if isinstance(given, tuple) else given),),
        inputs,
        perturb_func=lambda given, *_: given + next(draws).to(given),
        n_perturb_samples=DRAWS,
        max_examples_per_batch=len(inputs),
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    plain = [
        max(
            np.linalg.norm(squares(inputs + n.float())[i] - squares(inputs)[i])
            / np.linalg.norm(squares(inputs)[i])
            for n in noise
        )
        for i in range(4)
    ]
    np.testing.assert_allclose(found, plain, rtol=1e-6)


def test_sensitivity_of_inputs_with_the_same_noise_is_that_of_each_alone():
    inputs = torch.randn(3, 5, 7)
    found = t.sensitivity(squares, inputs, RADIUS, DRAWS, seed=9, same_noise=True)
    alone = [float(t.sensitivity(squares, one[None], RADIUS, DRAWS, seed=9)) for one in inputs]
    assert found.tolist() == pytest.approx(alone, rel=1e-6)


def test_sensitivity_at_its_ends():
    inputs = torch.randn(2, 3)
    assert t.sensitivity(torch.ones_like, inputs).tolist() == [0, 0]
    assert t.sensitivity(torch.zeros_like, inputs).tolist() == [0, 0]
    assert t.sensitivity(squares, inputs, radius=0).tolist() == [0, 0]
    again = t.sensitivity(squares, inputs, seed=1)
    assert torch.equal(again, t.sensitivity(squares, inputs, seed=1))
    assert not torch.equal(again, t.sensitivity(squares, inputs, seed=2))
    with pytest.raises(WhenceError, match="pixels or embeddings"):
        t.sensitivity(squares, torch.ones(2, 3, dtype=torch.long))
    with pytest.raises(WhenceError):
        t.sensitivity(squares, inputs, samples=0)


def test_completeness_error():
    found = t.completeness_error(
        torch.tensor([3.0, -1.0, 0.5]), torch.tensor([5.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 2.0])
    )
    assert found["absolute"].tolist() == [1, 0, 0.5]
    assert found["relative"].tolist() == [0.25, 0, 0.5]


@pytest.mark.parametrize("levels", [2, 4, 10_000])
def test_spearman_is_scipys(levels):
    one, other = torch.randint(0, levels, (2, 6, 4, 9)).float()
    other[1] = -one[1]
    found = t.spearman(one, other)
    for n in range(6):
        expected = stats.spearmanr(one[n].flatten(), other[n].flatten()).statistic
        assert found[n] == pytest.approx(expected, abs=1e-13)


def test_spearman_of_constant_maps_is_no_nan():
    flat, other = torch.zeros(2, 5), torch.tensor([[1.0, 2, 3, 4, 5], [7.0] * 5])
    assert t.spearman(flat, other).tolist() == [0, 1]
    assert t.spearman(other, other).tolist() == [1, 1]


def test_agreement():
    one = torch.tensor([[1.0, 2.0, 3.5], [0.0, 0.0, 0.0]])
    other = torch.tensor([[1.0, 2.0, -4.0], [0.0, 0.0, 0.0]])
    found = t.agreement(one, other)
    assert found["difference"].tolist() == [7.5 / 4, 0]
    assert found["spearman"].tolist() == [pytest.approx(-0.5), 1]
    with pytest.raises(WhenceError):
        t.agreement(one, other[:1])
    with pytest.raises(WhenceError):
        t.agreement(one, other / 0)


def plain_ssim(one: np.ndarray, other: np.ndarray) -> float:
    one, other = ((m - m.min()) / (m.max() - m.min()) for m in (one, other))
    line = np.exp(-0.5 * ((np.arange(11) - 5) / 1.5) ** 2)
    weights = np.outer(line, line) / np.outer(line, line).sum()
    found = []
    for y in range(one.shape[0] - 10):
        for x in range(one.shape[1] - 10):
            a, b = one[y : y + 11, x : x + 11], other[y : y + 11, x : x + 11]
            ma, mb = (weights * a).sum(), (weights * b).sum()
            va, vb = (weights * (a - ma) ** 2).sum(), (weights * (b - mb) ** 2).sum()
            both = (weights * (a - ma) * (b - mb)).sum()
            top = (2 * ma * mb + 1e-4) * (2 * both + 9e-4)
            found.append(top / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4)))
    return float(np.mean(found))


def test_ssim_is_the_plain_one():
    one = torch.rand(3, 14, 17, dtype=torch.float64)
    other = one + torch.rand(3, 14, 17) * torch.tensor([0.0, 0.3, 3.0])[:, None, None]
    found = t.ssim(one, other)
    expected = [plain_ssim(a, b) for a, b in zip(one.numpy(), other.numpy(), strict=True)]
    assert found.tolist() == pytest.approx(expected, abs=1e-13)
    assert found[0] == pytest.approx(1)
    assert t.ssim(one * 0, one * 0).tolist() == [1, 1, 1]
    with pytest.raises(WhenceError):
        t.ssim(one[:, :10], other[:, :10])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)
        self.scale = nn.Parameter(torch.rand(16) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * torch.tanh(self.first(self.norm(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.full((16,), 0.5))
        self.embed = nn.Linear(4, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.shift
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


@pytest.fixture
def model() -> nn.Module:
    model = Model().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    return model


def gradient(inputs: Tensor):
    def explain(model: nn.Module) -> Tensor:
        x = inputs.clone().requires_grad_()
        (found,) = torch.autograd.grad(model(x)[:, 0].sum(), x)
        return found.sum(-1)

    return explain


def test_the_cascade_goes_from_the_logits_down_and_leaves_the_model_alone(model):
    before = copy.deepcopy(model.state_dict())
    seen: list[dict[str, Tensor]] = []

    def watched(given: nn.Module) -> Tensor:
        assert given is not model
        seen.append({name: value.clone() for name, value in given.named_parameters()})
        return gradient(torch.randn(2, 20, 4))(given)

    names = [step.layer for step in t.randomization_cascade(model, watched)]
    assert names == ["head", "blocks.2", "blocks.1", "blocks.0", "embed", "Model"]
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    for step, name in enumerate(names, start=1):
        prefix = "shift" if name == "Model" else f"{name}."
        for parameter, value in seen[step].items():
            same = torch.equal(value, seen[step - 1][parameter])
            assert same != parameter.startswith(prefix), (name, parameter)
    assert not any(torch.equal(value, before[name]) for name, value in seen[-1].items())
    assert seen[-1]["shift"].std() < 3 * before["shift"].std()


def test_gradients_fall_and_what_ignores_the_model_stays(model):
    inputs = torch.randn(6, 30, 4)
    noise = torch.rand(6, 30)
    fallen = list(t.randomization_cascade(model, gradient(inputs)))
    stayed = list(t.randomization_cascade(model, lambda _: noise))
    assert all(step.spearman.tolist() == [1.0] * 6 for step in stayed)
    assert fallen[-1].spearman.abs().mean() < 0.5
    assert all(step.ssim is None for step in fallen)
    again = list(t.randomization_cascade(model, gradient(inputs)))
    assert all(torch.equal(a.spearman, b.spearman) for a, b in zip(fallen, again, strict=True))


def test_the_cascade_does_not_touch_the_global_generator(model):
    state = torch.get_rng_state()
    list(t.randomization_cascade(model, lambda _: torch.ones(1, 3)))
    assert torch.equal(torch.get_rng_state(), state)


def test_maps_get_their_similarity(model):
    maps = torch.rand(2, 14, 14)
    steps = list(t.randomization_cascade(model, lambda _: maps))
    assert all(step.ssim.tolist() == pytest.approx([1, 1]) for step in steps)


def test_shared_weights_are_made_random_once():
    model = nn.ModuleDict({"embed": nn.Embedding(7, 4), "out": nn.Linear(4, 7, bias=False)})
    model["out"].weight = model["embed"].weight
    kept = []
    for _ in t.randomization_cascade(
        model, lambda given: kept.append(given["out"].weight.clone()) or torch.ones(1, 3)
    ):
        pass
    assert not torch.equal(kept[0], kept[1])
    assert torch.equal(kept[1], kept[2])


@pytest.mark.parametrize(
    "name", ["ViTForImageClassification-sdpa", "Bert-eager", "Albert-sdpa", "torchvision-vit"]
)
def test_the_cascade_of_a_transformer_as_whence_explains_it(name):
    case = CASES[name]
    model, inputs = build_model(case), case.inputs()
    before = copy.deepcopy(model.state_dict())
    last: list[nn.Module] = []

    def explain(given: nn.Module) -> Tensor:
        last.append(given)
        return Explainer(given).explain(inputs, target=0, method="gae").scores

    steps = list(t.randomization_cascade(model, explain))
    names = [step.layer for step in steps]
    assert names[0] in ("classifier", "heads.head")
    assert sum("layer" in layer and layer[-1].isdigit() for layer in names) == (
        1 if name == "Albert-sdpa" else 3
    )
    assert names[-1].endswith("embeddings") or names[-1] == "VisionTransformer"
    end = dict(last[-1].named_parameters())
    assert not any(torch.equal(value, before[key]) for key, value in end.items())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(step.spearman.isfinite().all() for step in steps)
    assert steps[-1].spearman.mean() < 0.9


def test_random_scores_stay_as_they_are():
    case = CASES["ViTForImageClassification-sdpa"]
    inputs = case.inputs()
    steps = t.randomization_cascade(
        build_model(case), lambda model: Explainer(model).explain(inputs, method="random").scores
    )
    assert all(step.spearman.tolist() == [1.0] * 3 for step in steps)
