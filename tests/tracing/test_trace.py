"""One forward, many readings; nothing left behind; whatever surrounds the call."""

import functools
import gc
import threading
import types
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo import CASES, HandWrittenViT, built, images
from whence import Explainer, NoRuleError, WhenceError, rules
from whence.tracing import record


@pytest.fixture
def model() -> nn.Module:
    return HandWrittenViT().eval()


def scores(model: nn.Module, **options) -> Tensor:
    """By a method that reads gradients and relevance."""
    return Explainer(model).explain(images(32, 32), method="tiba", **options).scores


def test_one_forward_serves_all_readings(model):
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    Explainer(model).explain(images(32, 32), classes=5, keep_evidence=True)
    assert len(calls) == 1


def test_no_gradient_of_a_weight_is_ever_computed(model):
    traced = record(model, (images(32, 32),), {}, 0)
    found, waiting = set(), [traced.logits.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting.extend(behind for behind, _ in node.next_functions)
    leaves = [node.variable for node in found if node.name().endswith("AccumulateGrad")]
    assert len(leaves) == 1
    assert leaves[0] is traced.inputs[0]


def test_existing_gradients_stay(model):
    model(images(32, 32)).sum().backward()
    before = {name: p.grad.clone() for name, p in model.named_parameters()}
    scores(model)
    assert all(torch.equal(p.grad, before[name]) for name, p in model.named_parameters())


def test_frozen_models_are_explained_alike(model):
    expected = scores(model)
    assert torch.equal(scores(model.requires_grad_(False)), expected)


@pytest.mark.parametrize("name", ["hand-written", "Albert-sdpa", "ViTForImageClassification-sdpa"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_graph_is_freed_at_once(name, fails):
    """No cycle holds the activations back: they go without the garbage collector."""
    model = built(CASES[name])
    alive: list[weakref.ref] = []
    forward = Recorded.forward

    def watched(ctx, operation, *inputs):
        alive.append(weakref.ref(operation))
        return forward(ctx, operation, *inputs)

    rule_set = rules.get("stable")
    if fails:
        rule_set = rules.RuleSet(
            "without add", {k: v for k, v in rule_set.rules.items() if k != "add"}
        )
    gc.collect()
    gc.disable()
    Recorded.forward = staticmethod(watched)
    try:
        if fails:
            with pytest.raises(NoRuleError, match="`add`"):
                Explainer(model).explain(CASES[name].inputs(), method="tiba", rules=rule_set)
        else:
            Explainer(model).explain(CASES[name].inputs(), method="tiba", rules=rule_set)
        kept = [reference() for reference in alive if reference() is not None]
        assert alive
        assert not kept
    finally:
        Recorded.forward = staticmethod(forward)
        gc.enable()


def test_threads_do_not_meet(model):
    inputs = [images(32, 32) + i for i in range(4)]
    explainer = Explainer(model)
    expected = [
        explainer.explain(x, method="tiba", rules=r).scores
        for x, r in zip(inputs, ("stable", "reference") * 2, strict=True)
    ]
    results: dict[int, list[Tensor]] = {i: [] for i in range(4)}

    def work(i: int) -> None:
        for _ in range(3):
            rule_set = ("stable", "reference")[i % 2]
            found = explainer.explain(inputs[i], method="tiba", rules=rule_set)
            results[i].append(found.scores)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, found in results.items():
        assert len(found) == 3
        assert all(torch.equal(one, expected[i]) for one in found)


# Surroundings ------------------------------------------------------------------------------------


def test_inside_no_grad_and_inference_mode(model):
    expected = scores(model)
    with torch.no_grad():
        assert torch.equal(scores(model), expected)
    with torch.inference_mode():
        assert torch.equal(scores(model), expected)
        assert torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def test_autocast_is_set_aside(model):
    expected = scores(model)

    class Casting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.inner(x)

    with torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(scores(model), expected)
    assert torch.allclose(scores(Casting()), expected)


def test_a_model_that_switches_gradients_off_is_followed_all_the_same(model):
    expected = scores(model)

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    assert torch.equal(scores(Frozen()), expected)


def test_what_a_model_holds_constant_is_constant():
    class Stops(HandWrittenViT):
        def forward(self, image: Tensor) -> Tensor:
            with torch.no_grad():
                brightness = image.mean((1, 2, 3))
            return super().forward(image) * brightness[:, None]

    model, x = Stops(), images(32, 32)
    traced = record(model, (x,), {}, 0)
    plain = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(plain)[:, 0].sum(), plain)
    ours = traced.read(torch.zeros(3, 1, dtype=torch.long), traced.inputs)[0][0]
    assert torch.allclose(ours, gradient, atol=1e-6)


def test_a_compiled_model_and_one_in_data_parallel(model):
    expected = scores(model)
    assert torch.equal(scores(torch.compile(model)), expected)
    assert torch.equal(scores(nn.DataParallel(model)), expected)
    model.compile()
    assert torch.equal(scores(model), expected)


def test_parametrized_weights(model):
    nn.utils.parametrizations.weight_norm(model.head)
    expected = scores(model)
    nn.utils.parametrize.remove_parametrizations(model.head, "weight")
    assert torch.allclose(scores(model), expected)


def test_float64(model):
    single = scores(model)
    double = Explainer(model.double()).explain(images(32, 32).double(), method="tiba").scores
    assert double.dtype == torch.float64
    assert torch.allclose(single.double(), double, rtol=1e-3)


def test_bfloat16_is_explained_with_a_warning(model):
    with pytest.warns(UserWarning, match="bfloat16 is too coarse"):
        result = Explainer(model.bfloat16()).explain(images(32, 32).bfloat16(), method="tiba")
    assert result.scores.isfinite().all()


def test_gradient_checkpointing_is_switched_off():
    case = CASES["timm-vit-fused"]
    model = built(case)
    expected = Explainer(model).explain(case.inputs(), method="tiba").scores
    model.set_grad_checkpointing(True)
    found = Explainer(model).explain(case.inputs(), method="tiba").scores
    assert torch.equal(found, expected)
    assert model.grad_checkpointing


# The stand-in ------------------------------------------------------------------------------------


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
    scores(model)
    norm = model.norms[0]
    assert norm.num_batches_tracked == 0
    assert norm.training
    assert (model.seen, model.cache, model.count) == ([], {}, 0)


def test_a_forward_set_on_the_instance_runs_on_the_stand_in(model):
    expected = scores(model)
    block = model.blocks[0]
    modes = []

    def forward(self, x: Tensor) -> Tensor:
        modes.append((self.training, self is block))
        return HandWrittenBlock_forward(self, x)

    HandWrittenBlock_forward = type(block).forward
    block.forward = types.MethodType(forward, block)
    model.train()
    assert torch.equal(scores(model), expected)
    assert modes == [(False, False)]


def test_the_users_hooks_run(model):
    model.blocks[0].register_forward_hook(lambda _m, _a, output: output * 2)
    model.blocks[1].register_full_backward_hook(lambda *_: None)
    result = Explainer(model).explain(images(32, 32))
    with torch.no_grad():
        assert torch.allclose(result.logits, model(images(32, 32)), atol=1e-5)


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
    scores(model)
    assert torch.equal(model.steps, torch.zeros(3))


# Constants and inputs that are overwritten -------------------------------------------------------


class Overwrites(HandWrittenViT):
    """Writes over its input, over a weight it has used, and into a constant."""

    def forward(self, image: Tensor) -> Tensor:
        image -= 0.5
        image.mul_(2)
        workspace = torch.eye(32)
        x = F.linear(image.flatten(2).unfold(2, 32, 32).flatten(1, 2)[:, :16], workspace)
        workspace.mul_(5)
        tokens = torch.zeros(len(image), 17, 32)
        tokens[:, 1:] = x
        part = tokens[:, 1:]
        part += 1
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens)[:, 0])


class DoesNotOverwrite(HandWrittenViT):
    def forward(self, image: Tensor) -> Tensor:
        image = (image - 0.5) * 2
        x = F.linear(image.flatten(2).unfold(2, 32, 32).flatten(1, 2)[:, :16], torch.eye(32))
        tokens = torch.cat([torch.zeros(len(image), 1, 32), x + 1], 1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens)[:, 0])


def test_overwriting_changes_no_number():
    model, clean = Overwrites().eval(), DoesNotOverwrite().eval()
    clean.load_state_dict(model.state_dict())
    x = images(32, 32)
    before = x.clone()
    classes = torch.ones(3, 1, dtype=torch.long)
    ours, expected = record(model, (x,), {}, 0), record(clean, (x,), {}, 0)
    assert torch.equal(x, before)
    assert torch.allclose(ours.logits, expected.logits, atol=1e-6)
    for rule_set in (None, rules.get("stable")):
        a = ours.read(classes, [*ours.inputs], rule_set)[0]
        b = expected.read(classes, [*expected.inputs], rule_set)[0]
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)


# Hidden calls ------------------------------------------------------------------------------------


@torch.jit.script
def _scripted(x: Tensor, w: Tensor) -> Tensor:
    return torch.matmul(x, w)


def test_calls_hidden_in_torchscript_do_not_pass_in_silence(model):
    weight = torch.randn(5, 5)

    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            return _scripted(self.inner(x), weight)

    with pytest.raises(NoRuleError, match="a part of the model that hides its calls"):
        scores(Scripted())


def test_torchscript_modules_are_refused(model):
    scripted = torch.jit.script(nn.Linear(5, 5))
    with pytest.raises(WhenceError, match="TorchScript module, which hides its calls"):
        scores(nn.Sequential(model, scripted))


def test_what_output_does_is_recorded_too(model):
    weight = torch.randn(5, 5)

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) @ weight

    expected = scores(Whole())
    outside = Explainer(model, output=lambda logits: logits @ weight)
    assert torch.equal(outside.explain(images(32, 32), method="tiba").scores, expected)


# Token ids ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lookup", [F.embedding, lambda ids, w: w[ids], lambda ids, w: w[ids.clone()]]
)
def test_ids_are_followed_from_their_embeddings(lookup):
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Parameter(torch.randn(50, 32))
            self.vit = HandWrittenViT()

        def forward(self, ids: Tensor) -> Tensor:
            x = lookup(ids, self.words)
            x += self.vit.positions[: ids.shape[1]]
            for block in self.vit.blocks:
                x = block(x)
            return self.vit.head(x[:, 0])

    ids = torch.randint(0, 50, (2, 7))
    traced = record(Text(), (ids,), {}, 0)
    assert [tuple(leaf.shape) for leaf in traced.inputs] == [(2, 7, 32)]
    assert Explainer(Text()).explain(ids).scores.shape == (2, 7)


def test_ids_that_cannot_be_followed_say_what_to_do():
    class OneHot(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vit = HandWrittenViT()
            self.words = nn.Parameter(torch.randn(50, 32))

        def forward(self, ids: Tensor) -> Tensor:
            x = F.one_hot(ids, 50).float() @ self.words
            for block in self.vit.blocks:
                x = block(x)
            return self.vit.head(x[:, 0])

    with pytest.raises(WhenceError, match=r"pass embeddings \(inputs_embeds\) instead of ids"):
        Explainer(OneHot()).explain(torch.randint(0, 50, (2, 7)))
