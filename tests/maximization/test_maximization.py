import io
import threading

import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import nn

from tests import zoo
from tests.saved import save_image_model
from tests.zoo import CASES, HandWrittenViT, built
from whence import Explainer, MaximalPicture, WhenceError, activation_maximization, models
from whence.maximization import Head, Token, Unit
from whence.maximization.objectives import class_objective, inner_objective
from whence.maximization.parametrization import Fourier, Pixels, moved, total_variation
from whence.maximization.subject import Subject
from whence.render.display import show_picture

TARGETS = [2, Unit(1, 5), Token(2, 3), Head(1, 2)]
STILL = {"jitter": 0, "rotation": 0, "zoom": 0}
FAMILIES = [
    "ViTForImageClassification-sdpa",
    "DeiTForImageClassificationWithTeacher-eager",
    "Dinov2WithRegistersForImageClassification-sdpa",
    "timm-vit-fused",
    "timm-vit-average-unfused",
    "timm-vit-rectangle-fused",
    "torchvision-vit",
    "hand-written",
]


def tiny() -> nn.Module:
    return built(CASES["ViTForImageClassification-sdpa"])


def objective_of(model, target, inputs):
    """The function that is maximised, as a number of pixels as the model takes them."""
    if isinstance(target, int):
        return class_objective(model, target)
    return inner_objective(model, target, inputs)


# What is maximised -------------------------------------------------------------------------------


@pytest.mark.parametrize("parametrization", ["fourier", "pixels"])
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_the_value_rises_above_the_start_and_above_noise(target, parametrization):
    model = tiny()
    found = activation_maximization(
        model, target, parametrization=parametrization, steps=40, jitter=1
    )
    noise = torch.rand(1, 3, 32, 32) * 2 - 1
    number = objective_of(model, target, noise).number
    of_noise = max(number(noise.roll(n, 2)).item() for n in range(3))
    start = found.values[0]
    assert found.values.shape == (40,)
    assert found.value > start + 0.2 * start.abs()
    assert found.value > of_noise
    assert found.value == pytest.approx(number(found.inputs).item(), rel=1e-5)


def gradients(model, target, name):
    """Gradient of what whence maximises, and of what `plain` reads by hooks, at a picture."""
    inputs = CASES[name].inputs()
    inputs = inputs["pixel_values"] if isinstance(inputs, dict) else inputs
    inputs = inputs[:1].double().requires_grad_()
    objective = objective_of(model, target, inputs.detach())
    value = objective.number(inputs)
    return inputs, value, torch.autograd.grad(value, inputs)[0]


@pytest.mark.parametrize("layer", [0, 1, zoo.DEPTH])
@pytest.mark.parametrize("name", FAMILIES)
def test_hidden_states_as_hooks_see_them(name, layer):
    model = built(CASES[name]).double()
    hidden = []
    blocks = list(zoo.blocks(model))

    def keep(value):
        hidden.append((value[0] if isinstance(value, tuple) else value).clone())

    if layer < zoo.DEPTH:
        hook = blocks[layer].register_forward_pre_hook(lambda _m, args: keep(args[0]))
    else:
        hook = blocks[-1].register_forward_hook(lambda _m, _args, out: keep(out))
    plain = CASES[name].inputs()
    plain = plain["pixel_values"] if isinstance(plain, dict) else plain
    plain = plain[:1].double().requires_grad_()
    model(plain)
    hook.remove()
    (state,) = hidden
    for target, expected in (
        (Unit(layer, 7), state[0, :, 7].sum() / state.shape[1]),
        (Token(layer, 9), (state[0, 9] ** 2).sum() / state.shape[2]),
    ):
        (gradient,) = torch.autograd.grad(expected, plain, retain_graph=True)
        _, value, found = gradients(model, target, name)
        assert torch.allclose(value, expected, rtol=1e-10)
        assert gradient.abs().max() > 0
        assert (found - gradient).abs().max() < 1e-8 * max(1, gradient.abs().max())


@pytest.mark.parametrize(
    ("name", "projection"),
    [
        ("timm-vit-fused", lambda block: block.attn.proj),
        ("timm-vit-rectangle-unfused", lambda block: block.attn.proj),
        ("ViTForImageClassification-eager", None),
        ("Dinov2ForImageClassification-sdpa", None),
    ],
)
def test_heads_as_hooks_see_them(name, projection):
    model = built(CASES[name]).double()
    block = list(zoo.blocks(model))[1]
    if projection is None:  # the first square projection that is named as the output
        joins = [m for n, m in block.named_modules() if n.endswith(("output.dense", "o_proj"))]
        join = next(m for m in joins if m.in_features == m.out_features)
        heads = 4
    else:
        join, heads = projection(block), block.attn.num_heads
    joined = []
    hook = join.register_forward_pre_hook(lambda _m, args: joined.append(args[0]))
    plain = CASES[name].inputs()
    plain = plain["pixel_values"] if isinstance(plain, dict) else plain
    plain = plain[:1].double().requires_grad_()
    model(plain)
    hook.remove()
    width = joined[0].shape[-1] // heads
    for head in range(heads):
        expected = (joined[0][0, :, head * width : (head + 1) * width] ** 2).mean()
        (gradient,) = torch.autograd.grad(expected, plain, retain_graph=True)
        _, value, found = gradients(model, Head(1, head), name)
        assert torch.allclose(value, expected, rtol=1e-10)
        assert (found - gradient).abs().max() < 1e-8 * max(1, gradient.abs().max())


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_as_the_model_gives_them(name):
    model = built(CASES[name]).double()
    inputs, value, found = gradients(model, 3, name)
    returned = model(inputs)
    expected = getattr(returned, "logits", returned)[0, 3]
    assert torch.equal(value, expected)
    (gradient,) = torch.autograd.grad(expected, inputs)
    assert (found - gradient).abs().max() < 1e-8


class WritingBlock(zoo.HandWrittenBlock):
    """Adds what was attended to, and what was computed from it, to the very tensor it was given."""

    def forward(self, x):
        h = self.norm1(x)
        q, k, v = (torch.einsum("bnd,hde->bhne", h, w) for w in self.qkv)
        attention = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        x += torch.einsum("bhid,hdw->biw", attention @ v, self.out)
        x += self.mlp(self.norm2(x))
        return x


@pytest.mark.parametrize("target", [Unit(1, 4), Token(2, 6), Token(3, 6), Head(1, 3)], ids=str)
def test_states_that_the_model_overwrites(target):
    model = HandWrittenViT().double()
    writes = HandWrittenViT().double()
    writes.blocks = nn.ModuleList(WritingBlock(32, 4) for _ in range(zoo.DEPTH)).double()
    writes.load_state_dict(model.state_dict())
    _, expected, gradient = gradients(model, target, "hand-written")
    _, value, found = gradients(writes, target, "hand-written")
    assert torch.allclose(value, expected, rtol=1e-10)
    assert (found - gradient).abs().max() < 1e-8


def test_numbers_count_from_the_end():
    model, inputs = tiny(), zoo.images(32, 32)[:1]
    for one, same in (
        (Unit(-1, -1), Unit(3, 31)),
        (Token(-2, -1), Token(2, 16)),
        (Head(-1, -1), Head(2, 3)),
    ):
        assert torch.equal(*(inner_objective(model, t, inputs).number(inputs) for t in (one, same)))


# The climb ---------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_picture_and_nothing_else_draws():
    model = tiny()
    before = torch.get_rng_state()
    one, same, other = (
        activation_maximization(model, Unit(1, 0), steps=4, seed=seed) for seed in (3, 3, 4)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.pixels, same.pixels)
    assert torch.equal(one.values, same.values)
    assert not torch.allclose(one.pixels, other.pixels, atol=1e-2)


@pytest.mark.parametrize("parametrization", ["fourier", "pixels"])
def test_priors_lower_what_they_are_weights_of(parametrization):
    model = tiny()

    def made(**priors) -> MaximalPicture:
        return activation_maximization(
            model, 1, steps=40, parametrization=parametrization, **STILL, **priors
        )

    free = made(l2=0, total_variation=0)
    small = [made(l2=weight, total_variation=0) for weight in (2.0, 200.0)]
    smooth = [made(l2=0, total_variation=weight) for weight in (20.0, 2000.0)]
    sizes = [found.inputs.square().mean() for found in (free, *small)]
    roughness = [total_variation(found.pixels) for found in (free, *smooth)]
    assert sizes[0] > sizes[1] > sizes[2]
    assert roughness[0] > roughness[1] > roughness[2]


def test_one_step_is_that_of_the_formula():
    """Adam's first step goes by the learning rate against the sign of the gradient."""
    model = tiny().double()
    options = {"parametrization": "pixels", "learning_rate": 0.01, "seed": 5, **STILL}
    found = activation_maximization(
        model, Unit(2, 3), steps=1, l2=0.7, total_variation=9, **options
    )
    start = Pixels((32, 32), torch.Generator().manual_seed(5), torch.zeros(0).double()).free
    start.requires_grad_()
    grey = torch.zeros(1, 3, 32, 32, dtype=torch.float64)
    hidden = []
    for inputs in (grey, start[None] * 2 - 1):
        hook = list(zoo.blocks(model))[2].register_forward_pre_hook(
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
    found = activation_maximization(tiny(), 0, parametrization=parametrization, **options)
    assert found.pixels.shape == (3, 32, 32)
    assert found.pixels.min() >= 0
    assert found.pixels.max() <= 1
    assert ((found.pixels < 0.01) | (found.pixels > 0.99)).float().mean() > 0.2
    assert torch.allclose(found.inputs, (found.pixels[None] - 0.5) / 0.5)


@pytest.mark.parametrize("size", [(32, 48), (33, 35), (2, 7)])
def test_waves_make_a_grey_picture_of_any_size(size):
    waves = Fourier(size, torch.Generator().manual_seed(0), torch.zeros(0).double())
    picture = waves()
    assert picture.shape == (3, *size)
    assert (picture - 0.5).abs().max() < 0.3
    assert picture.std() > 1e-4


def test_waves_are_as_large_as_those_of_photos():
    """Amplitudes fall with frequency, and colours vary together."""
    waves = Fourier((64, 64), torch.Generator().manual_seed(0), torch.zeros(0).double())
    free = torch.logit(waves())
    spectrum = torch.fft.rfft2(free.mean(0), norm="ortho").abs()
    assert spectrum[1:4, 1:4].mean() > 4 * spectrum[16:20, 16:20].mean()
    assert torch.corrcoef(free.flatten(1)).min() > 0.5


def blob(height: int, width: int, row: float, column: float) -> torch.Tensor:
    down, right = torch.arange(height)[:, None] - row, torch.arange(width)[None] - column
    return torch.exp(-(down**2 + right**2) / 8).double().expand(3, -1, -1)


def centre(picture: torch.Tensor) -> torch.Tensor:
    """Where a blob is, from the middle of the picture."""
    weights = picture[0] / picture[0].sum()
    rows, columns = (torch.arange(n).double() - (n - 1) / 2 for n in weights.shape)
    return torch.stack([(weights.sum(1) * rows).sum(), (weights.sum(0) * columns).sum()])


def test_movements_turn_and_scale_about_the_middle():
    picture = blob(64, 96, 20, 60)
    at = centre(picture)
    turned, scaled = [], []
    for seed in range(6):
        random = torch.Generator().manual_seed(seed)
        there = centre(moved(picture, random, 0, 20, 0))
        assert there.norm() == pytest.approx(float(at.norm()), abs=0.05)
        turned.append(torch.acos((there @ at / there.norm() / at.norm()).clamp(max=1)).rad2deg())
        there = centre(moved(picture, random, 0, 0, 0.2))
        assert torch.allclose(there / there.norm(), at / at.norm(), atol=0.01)
        scaled.append(there.norm() / at.norm())
    assert 5 < max(turned) <= 20.1
    assert 0.79 <= min(scaled) < 1 < max(scaled) <= 1.21


def test_jitter_shifts_around_the_edges():
    picture = torch.rand(3, 8, 9)
    random = torch.Generator().manual_seed(0)
    shifts = {(d, r): picture.roll((d, r), (1, 2)) for d in range(-2, 3) for r in range(-2, 3)}
    seen = set()
    for _ in range(60):
        found = moved(picture, random, 2, 0, 0)
        seen |= {shift for shift, same in shifts.items() if torch.equal(found, same)}
    assert len(seen) > 18
    assert moved(picture, random, 0, 0, 0) is picture


# The model ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_the_model_stays_as_it_was(target):
    model = tiny().train()
    model.vit.layernorm.eval()
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    activation_maximization(model, target, steps=2)
    assert [module.training for module in model.modules()] == modes
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_two_threads_do_not_meet():
    model = tiny()
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
    model = tiny()
    expected = activation_maximization(model, 1, steps=3).pixels
    with torch.inference_mode():
        found = activation_maximization(model, 1, steps=3).pixels
    with torch.no_grad():
        again = activation_maximization(model, 1, steps=3).pixels
    assert torch.equal(found, expected)
    assert torch.equal(again, expected)


def test_weights_of_half_the_precision():
    found = activation_maximization(tiny().bfloat16(), Unit(1, 5), steps=20)
    assert found.pixels.dtype == torch.float32
    assert found.value > found.values[0]


# What is known of the model ----------------------------------------------------------------------


def test_a_folder_by_name_of_the_class(image_model):
    found = activation_maximization(image_model, "dog", steps=2)
    loaded = models.load(image_model)
    same = activation_maximization(loaded, 1, steps=2)
    assert (found.target, found.name) == (1, "dog")
    assert torch.equal(found.pixels, same.pixels)
    logits = Explainer(loaded.model).explain(found.inputs).logits
    assert found.value == pytest.approx(float(logits[0, 1]), rel=1e-5)


def test_pixels_are_normalised_as_the_processor_does(tmp_path):
    folder = save_image_model(
        tmp_path, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6], rescale_factor=1 / 255
    )
    loaded = models.load(folder)
    found = activation_maximization(loaded, "cat", steps=2)
    prepared = loaded.prepare([found.image]).inputs
    assert (found.inputs - prepared).abs().max() < 0.5 / 255 / 0.4 + 1e-5


def test_pixels_are_not_normalised_where_the_processor_does_not(tmp_path):
    folder = save_image_model(tmp_path, do_normalize=False)
    loaded = models.load(folder)
    found = activation_maximization(loaded, "cat", steps=2)
    assert (found.inputs - loaded.prepare([found.image]).inputs).abs().max() < 0.5 / 255 + 1e-5


def test_size_and_pixels_of_timm_and_torchvision():
    timm = pytest.importorskip("timm")
    model = timm.create_model("deit_tiny_patch16_224", img_size=(32, 64), depth=1)
    subject = Subject.of(model, None, None, None)
    assert subject.size == (32, 64)
    assert subject.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    assert subject.std.flatten().tolist() == pytest.approx([0.229, 0.224, 0.225])
    given = Subject.of(model, 48, 0.3, (0.1, 0.2, 0.3))
    assert given.size == (48, 48)
    assert given.mean.flatten().tolist() == pytest.approx([0.3] * 3)
    assert given.std.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert Subject.of(zoo._torchvision_vit(), None, None, None).size == (32, 32)


def test_the_embedded_model_sees_a_cat():
    loaded = models.load(None, "image", device="cpu")
    found = activation_maximization(loaded, "cat", steps=16)
    with torch.no_grad():
        plain = [
            float(loaded.model(pixels).logits[0, 0])
            for pixels in (torch.zeros(1, 3, 160, 160), torch.rand(1, 3, 160, 160) * 2 - 1)
        ]
    assert found.value > max(plain) + 2


# The answer --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def picture() -> MaximalPicture:
    case = CASES["timm-vit-rectangle-fused"]
    return activation_maximization(built(case), Head(0, 1), steps=2)


def test_the_picture_saves_and_loads(picture, tmp_path):
    path = tmp_path / "head.png"
    picture.save(path)
    with Image.open(path) as image:
        assert (image.format, image.mode, image.size) == ("PNG", "RGB", (48, 32))
        assert image.tobytes() == picture.image.tobytes()
    values = torch.frombuffer(bytearray(picture.image.tobytes()), dtype=torch.uint8)
    values = values.reshape(32, 48, 3).permute(2, 0, 1) / 255
    assert (values - picture.pixels).abs().max() <= 0.5 / 255 + 1e-6
    picture.save(str(tmp_path / "head.JPG"))
    with Image.open(tmp_path / "head.JPG") as image:
        assert (image.format, image.size) == ("JPEG", (48, 32))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["head.JPG", "head.png"]


def test_a_place_that_cannot_be_written(picture, tmp_path):
    with pytest.raises(WhenceError, match=r"should end in \.png"):
        picture.save(tmp_path / "head.gif")
    with pytest.raises(WhenceError, match="cannot be written"):
        picture.save(tmp_path / "no" / "head.png")
    assert not list(tmp_path.iterdir())


def test_the_picture_on_a_terminal_and_in_a_notebook(picture, capsys):
    picture.show()
    heading, *rows = capsys.readouterr().out.rstrip("\n").split("\n")
    assert heading.startswith("Head(layer=0, head=1): ")
    assert [len(row) for row in rows] == [36] * 12
    with Image.open(io.BytesIO(picture._repr_png_())) as image:
        assert image.size == (48, 32)


def test_the_picture_in_coloured_half_blocks():
    image = Image.new("RGB", (36, 36), (200, 10, 20))
    image.paste((0, 30, 255), (0, 18, 36, 36))
    console = Console(
        file=io.StringIO(), width=80, force_terminal=True, color_system="truecolor", _environ={}
    )
    show_picture(image, "cat: 4", console)
    heading, *rows = console.file.getvalue().rstrip("\n").split("\n")
    assert heading == "cat: 4"
    assert len(rows) == 18
    assert "38;2;200;10;20;48;2;200;10;20m▀" in rows[0]
    assert "38;2;0;30;255;48;2;0;30;255m▀" in rows[-1]


# What goes wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (5, "Class 5 does not exist: the model has 5 classes, 0 to 4"),
        ("LABEL_9", "There is no class 'LABEL_9'. Nearest: 'label_"),
        (None, "A class is an index or a name, not None"),
        (Unit(4, 0), "The model has 4 hidden states, 0 to 3; there is no 4"),
        (Unit(-5, 0), "The model has 4 hidden states, 0 to 3; there is no -5"),
        (Unit(0, 32), "The hidden state of layer 0 has 32 channels, 0 to 31; there is no 32"),
        (Token(0, 17), "has 17 tokens, 0 to 16; there is no 17"),
        (Head(3, 0), "The model has 3 attention layers, 0 to 2; there is no 3"),
        (Head(1, 4), "Layer 1 has 4 heads, 0 to 3; there is no 4"),
    ],
)
def test_what_the_model_does_not_have(target, message):
    with pytest.raises(WhenceError) as raised:
        activation_maximization(tiny(), target, steps=1)
    assert message in str(raised.value)


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
        activation_maximization(tiny(), 1, **{"steps": 1, **options})
    assert message in str(raised.value)


def test_places_are_whole_numbers():
    with pytest.raises(WhenceError, match=r"Unit\(layer=\.\.\.\) is a whole number, not 1\.5"):
        Unit(1.5, 0)
    with pytest.raises(WhenceError, match=r"Head\(head=\.\.\.\) is a whole number, not True"):
        Head(0, True)


def test_models_of_text(text_model):
    said = "explains texts, not images"
    with pytest.raises(WhenceError, match=said):
        activation_maximization(text_model, "positive")
    with pytest.raises(WhenceError, match=said):
        activation_maximization(models.load(text_model), "positive")
    with pytest.raises(WhenceError, match="BertForSequenceClassification reads texts"):
        activation_maximization(built(CASES["Bert-sdpa"]), 1)


def test_a_model_that_does_not_tell_its_size():
    with pytest.raises(WhenceError, match="HandWrittenViT does not tell the size"):
        activation_maximization(HandWrittenViT(), 1)
    found = activation_maximization(HandWrittenViT(), 1, steps=1, image_size=32)
    assert found.pixels.shape == (3, 32, 32)
    with pytest.raises(WhenceError, match="not bool"):
        activation_maximization(True, 1)


def test_a_model_that_lets_no_gradient_through():
    class Sealed(HandWrittenViT):
        def forward(self, image):
            return super().forward(image.detach())

    with pytest.raises(WhenceError, match="does not depend on the picture"):
        activation_maximization(Sealed(), 1, image_size=32, steps=1)


def test_what_no_picture_changes():
    model = tiny()
    with pytest.raises(WhenceError, match="its gradient is zero"):
        activation_maximization(model, Token(0, 0), steps=1)
    with torch.no_grad():
        model.classifier.weight.zero_()
    with pytest.raises(WhenceError, match="its gradient is zero"):
        activation_maximization(model, 1, steps=1)


def test_a_model_that_gives_nan():
    class Broken(HandWrittenViT):
        def forward(self, image):
            return super().forward(image) * float("nan")

    with pytest.raises(WhenceError, match="became NaN or infinite"):
        activation_maximization(Broken(), 1, image_size=32, steps=1)


def test_a_model_whose_logits_are_not_obvious():
    class Odd(HandWrittenViT):
        def forward(self, image):
            return {"scores": super().forward(image)[None]}

    with pytest.raises(WhenceError, match="finds no logits"):
        activation_maximization(Odd(), 1, image_size=32, steps=1)
    with pytest.raises(WhenceError, match=r"Logits of shape \(1, classes\) are needed"):
        activation_maximization(Odd(), 1, image_size=32, steps=1, output=lambda r: r["scores"])
    found = activation_maximization(
        Odd(), 1, image_size=32, steps=1, output=lambda r: r["scores"][0]
    )
    assert found.name == "class 1"
