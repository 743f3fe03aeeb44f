"""The stand-in that is run: the model, and the arguments of the call, are left as they were."""

import contextlib
import copy
import functools
import threading
import types

import pytest
import torch
from torch import Tensor, nn

from tests.zoo import HandWrittenViT, make_images
from whence import Explainer, WhenceError
from whence.tracing import StandIns, copy_arguments, replicate, unwrap_model
from whence.tracing.stand_in import name_modules


@pytest.fixture
def model() -> nn.Module:
    return HandWrittenViT().eval()


def explain(model: nn.Module, **options) -> Tensor:
    """Scores by a method that reads gradients and relevance."""
    return Explainer(model).explain(make_images(32, 32), method="tiba", **options).scores


class Remembers(HandWrittenViT):
    """Keeps modules, caches and bound methods where a module tree does not show them."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = [nn.BatchNorm1d(32)]
        self.seen: list[Tensor] = []
        self.cache: dict[str, Tensor] = {}
        self.register_buffer("count", torch.zeros(()))
        self.hidden = self.remember
        self.partial = functools.partial(self.remember)

    def remember(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        self.cache["last"] = x
        self.count += 1
        return self.norms[0](x.flatten(0, 1)).view_as(x)

    def forward(self, image: Tensor) -> Tensor:
        pixels = self.partial(self.hidden(image.flatten(2).unfold(2, 32, 32).flatten(1, 2)))
        return super().forward(image) + pixels.mean((1, 2))[:, None]


def test_nothing_that_a_model_holds_is_touched():
    model = Remembers().train()
    explain(model)
    norm = model.norms[0]
    assert norm.num_batches_tracked == 0
    assert norm.training
    assert (model.seen, model.cache, model.count) == ([], {}, 0)


def test_a_forward_set_on_the_instance_runs_on_the_stand_in(model):
    expected = explain(model)
    block = model.blocks[0]
    modes = []

    def forward(self, x: Tensor) -> Tensor:
        modes.append((self.training, self is block))
        return HandWrittenBlock_forward(self, x)

    HandWrittenBlock_forward = type(block).forward
    block.forward = types.MethodType(forward, block)
    model.train()
    assert torch.equal(explain(model), expected)
    assert modes == [(False, False)]


def test_the_users_hooks_run(model):
    model.blocks[0].register_forward_hook(lambda _m, _a, output: output * 2)
    model.blocks[1].register_full_backward_hook(lambda *_: None)
    result = Explainer(model).explain(make_images(32, 32))
    with torch.no_grad():
        assert torch.allclose(result.logits, model(make_images(32, 32)), atol=1e-5)


def test_buffers_written_in_place_stay():
    class Counts(HandWrittenViT):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(3))

        def forward(self, image: Tensor) -> Tensor:
            self.steps.add_(1)
            self.steps[0] = 7
            return super().forward(image)

    model = Counts()
    explain(model)
    assert torch.equal(model.steps, torch.zeros(3))


def test_a_stand_in_shares_parameters_and_nothing_else():
    model = Remembers().train()
    copy = replicate(model)
    parameters = zip(model.parameters(), copy.parameters(), strict=True)
    assert all(a is b for a, b in parameters)
    assert not any(module.training for module in copy.modules())
    modules = zip(model.modules(), copy.modules(), strict=True)
    assert all(type(a) is type(b) and a is not b for a, b in modules)
    assert copy.norms[0] is not model.norms[0]
    assert copy.hidden.__self__ is copy
    assert copy.count is not model.count


def test_torchscript_modules_are_refused(model):
    scripted = torch.jit.script(nn.Linear(5, 5))
    with pytest.raises(WhenceError, match="TorchScript module, which hides its calls"):
        explain(nn.Sequential(model, scripted))


def test_models_are_unwrapped(model):
    assert unwrap_model(nn.DataParallel(torch.compile(model))) is model
    assert unwrap_model(model) is model


# Arguments ---------------------------------------------------------------------------------------


def make_language_model() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}
    config = GPT2Config(vocab_size=50, bos_token_id=1, eos_token_id=2, **sizes)
    return GPT2LMHeadModel(config).eval()


def read_cache(cache) -> list[Tensor]:
    return [tensor.clone() for layer in cache.layers for tensor in (layer.keys, layer.values)]


def make_cache(kind: str, model: nn.Module, ids: Tensor, *, graph: bool = False):
    from transformers import DynamicCache, EncoderDecoderCache, StaticCache

    if not hasattr(DynamicCache(), "layers"):
        pytest.skip("caches of releases of transformers before 4.54")
    cache = StaticCache(model.config, max_cache_len=16) if kind == "static" else DynamicCache()
    with torch.set_grad_enabled(graph):
        model(ids, past_key_values=cache, use_cache=True)
    return EncoderDecoderCache(cache, DynamicCache()) if kind == "pair" else cache


@pytest.mark.parametrize("method", ["gae", "raw_attention", "occlusion", "integrated_gradients"])
@pytest.mark.parametrize("kind", ["dynamic", "static", "pair"])
def test_a_users_cache_stays_as_it_was(kind, method):
    model, ids = make_language_model(), torch.randint(3, 50, (1, 7))
    cache = make_cache(kind, model, ids[:, :4])
    inner = cache.self_attention_cache if kind == "pair" else cache
    before = read_cache(inner)
    explainer = Explainer(model, output=lambda returned: returned.logits[:, -1])
    inputs = {"input_ids": ids[:, 4:], "past_key_values": cache}
    with contextlib.suppress(WhenceError, RuntimeError):  # refused calls leave it alone, too
        explainer.explain(inputs, method=method)
    assert inner.get_seq_length() == 4
    after = read_cache(inner)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_logits_with_a_cache_that_has_a_graph():
    model, ids = make_language_model(), torch.randint(3, 50, (1, 7))
    cache = make_cache("dynamic", model, ids[:, :4], graph=True)
    explainer = Explainer(model, output=lambda returned: returned.logits[:, -1])
    inputs = {"input_ids": ids[:, 4:], "past_key_values": cache}
    result = explainer.explain(inputs, method="gradient")
    assert torch.allclose(result.logits, model(ids).logits[:, -1], atol=1e-5)


def test_tensors_that_a_model_writes_to_stay():
    class Writes(HandWrittenViT):
        def forward(self, image: Tensor, pairs: tuple[Tensor, Tensor], steps: list[Tensor]):
            pairs[0].mul_(2)
            steps.append(image)
            steps[0] += 1
            return super().forward(image) * pairs[0]

    pairs, steps = (torch.ones(()), torch.ones(())), [torch.zeros(2)]
    inputs = {"image": make_images(32, 32), "pairs": pairs, "steps": steps}
    for method in ("tiba", "rise"):
        options = {"masks": 2} if method == "rise" else {}
        Explainer(Writes()).explain(inputs, method=method, **options)
        assert pairs[0] == 1
        assert len(steps) == 1
        assert torch.equal(steps[0], torch.zeros(2))


def test_copies_keep_values_and_sharing_but_no_graph():
    x = torch.ones(2, requires_grad=True) * 3
    (a, b), named = copy_arguments((x, [x]), {"same": x, "number": 2})
    assert a is b[0] is named["same"]
    assert torch.equal(a, x)
    assert not a.requires_grad
    assert a.data_ptr() != x.data_ptr()
    assert named["number"] == 2
    assert isinstance(copy.deepcopy(torch.ones(2)), Tensor)


def test_what_cannot_be_copied_is_refused():
    with pytest.raises(WhenceError, match=r"Argument 'lock' \(lock\) cannot be copied"):
        copy_arguments((), {"lock": threading.Lock()})


# Stand-ins that are used again -------------------------------------------------------------------


def build_small() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Sequential(nn.Linear(3, 2)))
    model.settings = {"scales": [1.0, 2.0]}
    return model.eval()


def borrow_twice(model: nn.Module, between=lambda model: None, use=lambda module: None):
    """The stand-ins of a model before and after something is done to it, or to the first."""
    stand_ins = StandIns()
    with stand_ins.borrow(model) as first:
        use(first)
    between(model)
    with stand_ins.borrow(model) as second:
        return first, second


def test_an_unchanged_model_has_one_stand_in():
    first, second = borrow_twice(build_small())
    assert first is second


def add_a_hook(model):
    model[0].register_forward_hook(lambda *_: None)


def replace_a_module(model):
    model[2][0] = nn.Linear(3, 2)


def replace_a_parameter(model):
    model[0].weight = nn.Parameter(torch.zeros(3, 3))


def replace_a_forward(model):
    model[0].forward = lambda x: 2 * x


def change_a_nested_list(model):
    model.settings["scales"].append(3.0)


def train(model):
    model.train()


@pytest.mark.parametrize(
    "change",
    [
        add_a_hook,
        replace_a_module,
        replace_a_parameter,
        replace_a_forward,
        change_a_nested_list,
        train,
    ],
)
def test_a_changed_model_gets_another_stand_in(change):
    model, x = build_small(), torch.randn(4, 3)
    first, second = borrow_twice(model, between=change)
    assert second is not first
    assert torch.equal(second(x), model.eval()(x))


def test_a_stand_in_that_was_changed_is_not_used_again():
    def keep_state(module):
        module[0].last_input = torch.ones(1)

    first, second = borrow_twice(build_small(), use=keep_state)
    assert second is not first
    assert not hasattr(second[0], "last_input")


def test_buffers_have_the_values_of_the_model():
    def write_to_buffers(model):
        with torch.no_grad():
            model[1].running_mean.add_(5)

    def forget(module):
        module[1].running_var.zero_()

    model, x = build_small(), torch.randn(4, 3)
    first, second = borrow_twice(model, between=write_to_buffers, use=forget)
    assert first is second
    assert torch.equal(second(x), model(x))


def test_two_users_have_two_stand_ins():
    model, stand_ins = build_small(), StandIns()
    with stand_ins.borrow(model) as one, stand_ins.borrow(model) as other:
        assert one is not other


def test_modules_are_named_as_torch_names_them():
    model = build_small()
    model.add_module("again", model[2])  # a module in two places has its first name
    model.add_module("none", None)
    expected = {module: name for name, module in model.named_modules()}
    assert list(name_modules(model).items()) == list(expected.items())
