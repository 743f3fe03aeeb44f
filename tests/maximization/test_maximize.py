import threading

import pytest
import torch

from tests import zoo
from tests.maximization.samples import TARGETS, build_objective, build_tiny
from tests.zoo import HandWrittenViT
from whence import MaximalPicture, WhenceError, activation_maximization, models
from whence.maximization import Channel
from whence.maximization.parametrization import Pixels, compute_total_variation

STILL = {"jitter": 0, "rotation": 0, "zoom": 0}


@pytest.mark.parametrize("parametrization", ["fourier", "pixels"])
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_the_value_rises_above_the_start_and_above_noise(target, parametrization):
    model = build_tiny()
    found = activation_maximization(
        model, target, parametrization=parametrization, steps=40, jitter=1
    )
    noise = torch.rand(1, 3, 32, 32) * 2 - 1
    number = build_objective(model, target, noise).compute
    of_noise = max(number(noise.roll(n, 2)).item() for n in range(3))
    start = found.values[0]
    assert found.values.shape == (40,)
    assert found.value > start + 0.2 * start.abs()
    assert found.value > of_noise
    assert found.value == pytest.approx(number(found.inputs).item(), rel=1e-5)


def test_the_seed_decides_and_the_global_random_state_stays():
    model = build_tiny()
    before = torch.get_rng_state()
    one, same, other = (
        activation_maximization(model, Channel(1, 0), steps=4, seed=seed) for seed in (3, 3, 4)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.pixels, same.pixels)
    assert torch.equal(one.values, same.values)
    assert not torch.allclose(one.pixels, other.pixels, atol=1e-2)


@pytest.mark.parametrize("parametrization", ["fourier", "pixels"])
def test_penalties_lower_size_and_roughness(parametrization):
    model = build_tiny()

    def made(**priors) -> MaximalPicture:
        return activation_maximization(
            model, 1, steps=40, parametrization=parametrization, **STILL, **priors
        )

    free = made(l2=0, total_variation=0)
    small = [made(l2=weight, total_variation=0) for weight in (2.0, 200.0)]
    smooth = [made(l2=0, total_variation=weight) for weight in (20.0, 2000.0)]
    sizes = [found.inputs.square().mean() for found in (free, *small)]
    roughness = [compute_total_variation(found.pixels) for found in (free, *smooth)]
    assert sizes[0] > sizes[1] > sizes[2]
    assert roughness[0] > roughness[1] > roughness[2]


def test_one_step_follows_the_formula():
    """Adam's first step goes by the learning rate against the sign of the gradient."""
    model = build_tiny().double()
    options = {"parametrization": "pixels", "learning_rate": 0.01, "seed": 5, **STILL}
    found = activation_maximization(
        model, Channel(2, 3), steps=1, l2=0.7, total_variation=9, **options
    )
    random = torch.Generator().manual_seed(5)
    start = Pixels((32, 32), random, torch.zeros(0).double()).parameters
    start.requires_grad_()
    grey = torch.zeros(1, 3, 32, 32, dtype=torch.float64)
    hidden = []
    for inputs in (grey, start[None] * 2 - 1):
        hook = list(zoo.find_block_modules(model))[2].register_forward_pre_hook(
            lambda _m, args: hidden.append(args[0])
        )
        model(inputs)
        hook.remove()
    scale = hidden[0][0, :, 3].square().mean().sqrt().detach()
    down = ((start[:, 1:] - start[:, :-1]) ** 2).mean()
    right = ((start[:, :, 1:] - start[:, :, :-1]) ** 2).mean()
    loss = 0.7 * ((start * 2 - 1) ** 2).mean() + 9 * (down + right)
    loss = loss - hidden[1][0, :, 3].mean() / scale
    (gradient,) = torch.autograd.grad(loss, start)
    clear = gradient.abs() > 1e-5  # Adam divides by the size plus 1e-8
    assert clear.double().mean() > 0.5
    step = (found.pixels - start.detach())[clear]
    assert torch.allclose(step, -0.01 * gradient[clear].sign(), atol=2e-5)


@pytest.mark.parametrize("parametrization", ["fourier", "pixels"])
def test_pixels_stay_between_0_and_1(parametrization):
    options = {"steps": 8, "learning_rate": 3.0, "l2": 0, "total_variation": 0}
    found = activation_maximization(build_tiny(), 0, parametrization=parametrization, **options)
    assert found.pixels.shape == (3, 32, 32)
    assert found.pixels.min() >= 0
    assert found.pixels.max() <= 1
    assert ((found.pixels < 0.01) | (found.pixels > 0.99)).float().mean() > 0.2
    assert torch.allclose(found.inputs, (found.pixels[None] - 0.5) / 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps is a whole number from 1 on, not 0"),
        ({"steps": 2.5}, "steps is a whole number from 1 on, not 2.5"),
        ({"seed": -1}, "seed is a whole number from 0 on, not -1"),
        ({"jitter": -2}, "jitter is a whole number from 0 on, not -2"),
        ({"learning_rate": 0}, "learning_rate is above 0"),
        ({"learning_rate": float("nan")}, "learning_rate is a number from 0 on, not nan"),
        ({"l2": -1.0}, "l2 is a number from 0 on, not -1.0"),
        ({"total_variation": "much"}, "total_variation is a number, not 'much'"),
        ({"zoom": 1.0}, "zoom is a share below 1"),
        ({"parametrization": "waves"}, "is one of 'fourier', 'pixels', not 'waves'"),
        ({"image_size": (32, 32, 3)}, "image_size is a number of pixels, or height and width"),
        ({"image_size": 1}, "image_size is a number of pixels, or height and width"),
        ({"image_size": 24}, "The model does not take a picture of 3x24x24: "),
        ({"mean": (0.5, 0.5)}, "mean is a number or one for each of three channels"),
        ({"std": 0}, "std is a number or one for each of three channels, above 0, not 0"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(WhenceError) as raised:
        activation_maximization(build_tiny(), 1, **{"steps": 1, **options})
    assert message in str(raised.value)


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_the_model_stays_as_it_was(target):
    model = build_tiny().train()
    model.vit.layernorm.eval()
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    activation_maximization(model, target, steps=2)
    assert [module.training for module in model.modules()] == modes
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_two_threads_at_once():
    model = build_tiny()
    alone = [activation_maximization(model, target, steps=5).pixels for target in TARGETS]
    found = {}

    def make(n: int) -> None:
        found[n] = activation_maximization(model, TARGETS[n], steps=5).pixels

    threads = [threading.Thread(target=make, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[n], alone[n]) for n in range(4))


def test_inside_of_inference_mode_and_no_grad():
    model = build_tiny()
    expected = activation_maximization(model, 1, steps=3).pixels
    with torch.inference_mode():
        found = activation_maximization(model, 1, steps=3).pixels
    with torch.no_grad():
        again = activation_maximization(model, 1, steps=3).pixels
    assert torch.equal(found, expected)
    assert torch.equal(again, expected)


def test_weights_of_half_the_precision():
    found = activation_maximization(build_tiny().bfloat16(), Channel(1, 5), steps=20)
    assert found.pixels.dtype == torch.float32
    assert found.value > found.values[0]


def test_the_embedded_model_sees_a_cat():
    loaded = models.load(None, "image", device="cpu")
    found = activation_maximization(loaded, "cat", steps=16)
    with torch.no_grad():
        plain = [
            float(loaded.model(pixels).logits[0, 0])
            for pixels in (torch.zeros(1, 3, 160, 160), torch.rand(1, 3, 160, 160) * 2 - 1)
        ]
    assert found.value > max(plain) + 2


def test_a_model_without_a_gradient():
    class Sealed(HandWrittenViT):
        def forward(self, image):
            return super().forward(image.detach())

    with pytest.raises(WhenceError, match="does not depend on the picture"):
        activation_maximization(Sealed(), 1, image_size=32, steps=1)


def test_a_model_that_returns_nan():
    class Broken(HandWrittenViT):
        def forward(self, image):
            return super().forward(image) * float("nan")

    with pytest.raises(WhenceError, match="became NaN or infinite"):
        activation_maximization(Broken(), 1, image_size=32, steps=1)
