"""What has to hold on a GPU. Nothing of it needs pytest: `python -m tests.gpu` runs all."""

import dataclasses
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.gpu.models import CASES, build, build_llama, give
from whence import Explainer, targets

Check = Callable[[str], None]
"""Gets the name of a device; fails by an AssertionError."""
METHODS = ("whence", "gae", "tiba", "attnlrp")


def _measure_error(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference over the norm of what is expected."""
    found, expected = found.double().cpu(), expected.double().cpu()
    assert found.shape == expected.shape
    assert expected.any()
    return float((found - expected).norm() / expected.norm())


def _explain_in_float64(name: str, method: str) -> Tensor:
    explainer = Explainer(build(name))
    return explainer.explain(give(name), method=method, **CASES[name].request).scores


def _choose_type(device: str) -> tuple[torch.dtype, float]:
    """The type of weights, and how far scores of two paths may be from each other in it.

    Torch's compiler does not fuse all products of float64 on a GPU.
    """
    return (torch.float64, 1e-9) if device == "cpu" else (torch.float32, 1e-4)


def check_scores(device: str, name: str, method: str) -> None:
    """In float32, scores are those of a CPU in float64 but for rounding."""
    explainer = Explainer(build(name, device, torch.float32))
    inputs = give(name, device, torch.float32)
    with torch.backends.cudnn.flags(allow_tf32=False):  # which convolutions use otherwise
        found = explainer.explain(inputs, method=method, **CASES[name].request).scores
    assert found.device.type == torch.device(device).type
    assert _measure_error(found, _explain_in_float64(name, method)) < 1e-4


def check_compiled(device: str, name: str, method: str) -> None:
    """Recorded and fused programs give the scores of the eager run, for other inputs too."""
    dtype, bound = _choose_type(device)
    model, inputs = build(name, device, dtype), give(name, device, dtype)
    request = CASES[name].request
    others = {key: value.flip(0) for key, value in inputs.items()}
    plain, recorded, fused = Explainer(model), Explainer(model, compile=True), Explainer(model)
    with warnings.catch_warnings():
        # Torch 2.11 does not fuse a Swin on a GPU: then its operators run one by one.
        refused = "compiled" if name == "swin" and device == "cuda" else "(compiled|fused)"
        warnings.filterwarnings("error", f".*cannot be {refused}")
        fused.compile(inputs, method=method, **request)
        for given in (inputs, others, inputs):
            expected = plain.explain(given, method=method, **request)
            for explainer in (recorded, fused):
                found = explainer.explain(given, method=method, **request)
                assert _measure_error(found.scores, expected.scores) < bound
                assert _measure_error(found.logits, expected.logits) < bound
    for explainer, is_recorded in ((recorded, True), (fused, False)):
        (program,) = explainer._compiled._programs.values()
        assert program is not None
        assert (program.recorded is not None) == is_recorded


def check_changed_weights(device: str) -> None:
    """A program reads weights as they are when it runs."""
    dtype, bound = _choose_type(device)
    model, inputs = build("vit", device, dtype), give("vit", device, dtype)
    explainer = Explainer(model)
    explainer.compile(inputs, target=0, method="tiba")
    before = explainer.explain(inputs, target=0, method="tiba").scores
    with torch.no_grad():
        model.classifier.weight.mul_(-1)
    after = explainer.explain(inputs, target=0, method="tiba").scores
    expected = Explainer(model).explain(inputs, target=0, method="tiba").scores
    assert _measure_error(after, expected) < bound
    assert _measure_error(after, before) > 1e-2


def check_recurring(device: str, name: str, method: str) -> None:
    """What recurs is recorded unasked: its scores are the plain ones, while the model's logits are.

    Only on a GPU anything is recorded.
    """
    model, inputs = build(name, device, torch.float32), give(name, device, torch.float32)
    request = {"target": 1, "method": method}
    explainer, plain = Explainer(model), Explainer(model, compile=False)
    others = {key: value.flip(0) for key, value in inputs.items()}
    for given in (*[inputs] * 12, others, inputs):
        found = explainer.explain(given, **request)
        expected = plain.explain(given, **request)
        assert _measure_error(found.scores, expected.scores) < 1e-4
        assert [one.name for one in found.checks] == [one.name for one in expected.checks]
    assert explainer._compiled.has_programs == (device == "cuda")

    def negate(module: nn.Module, args: object, output: Any) -> Any:
        return dataclasses.replace(output, logits=-output.logits)

    hook = model.register_forward_hook(negate)
    changed = explainer.explain(inputs, **request).scores
    assert _measure_error(changed, plain.explain(inputs, **request).scores) < 1e-4
    hook.remove()
    found = explainer.explain(inputs, **request)
    assert _measure_error(found.scores, plain.explain(inputs, **request).scores) < 1e-4
    assert _measure_error(found.scores, changed) > 1e-2


class _Copying(nn.Module):
    """Adds numbers that are copied to the GPU anew in each call, which no capture may do."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """Run the module."""
        output: Tensor = self.module(x)
        return output + torch.tensor([0.5], device=output.device)


def check_failed_capture(device: str) -> None:
    """A model that cannot be captured is explained all the same, and so are others after it."""
    request = {"target": 1, "method": "gae"}
    for copies in (True, False, True):
        model, inputs = build("vit", device, torch.float32), give("vit", device, torch.float32)
        if copies:
            model.vit.layernorm = _Copying(model.vit.layernorm)
        explainer, plain = Explainer(model), Explainer(model, compile=False)
        for given in (inputs, {key: value.flip(0) for key, value in inputs.items()}):
            expected = plain.explain(given, **request).scores
            for _ in range(7):
                found = explainer.explain(given, **request).scores
                assert _measure_error(found, expected) < 1e-4
        if not copies:  # who asks later gets a program that can be fused
            explainer.compile(inputs, method="gae", target=1)
            assert _measure_error(explainer.explain(given, **request).scores, expected) < 1e-4


def check_several_programs(device: str) -> None:
    """Programs that work in the same memory do not disturb each other, in any order."""
    dtype, bound = _choose_type(device)
    model, inputs = build("vit", device, dtype), give("vit", device, dtype)
    explainer, plain = Explainer(model), Explainer(model)
    for method in METHODS[:3]:
        explainer.compile(inputs, target=0, method=method)
    for method in (*METHODS[:3], *METHODS[2::-1], METHODS[1], METHODS[1]):
        found = explainer.explain(inputs, target=0, method=method).scores
        expected = plain.explain(inputs, target=0, method=method).scores
        assert _measure_error(found, expected) < bound


def check_chunks(device: str, compiles: bool) -> None:
    """Under a bound of memory a batch goes in chunks: scores stay, and the peak is lower."""
    model = build("vit", device, torch.float32)
    pixels = torch.randn(96, 3, 48, 48, generator=torch.Generator().manual_seed(2)).to(device)
    request = {"target": 0, "method": "tiba"}
    whole = Explainer(model).explain(pixels, memory=8, **request).scores
    explainer = Explainer(model, compile=compiles)
    found = explainer.explain(pixels, memory=0.02, **request).scores
    assert _measure_error(found, whole) < 1e-4
    if device == "cuda":
        peaks = [_measure_peak(Explainer(model), pixels, memory=m, **request) for m in (8, 0.02)]
        assert peaks[1] < 0.6 * peaks[0]


def check_long_context(device: str, method: str) -> None:
    """Operations that are freed and computed again give the same scores, in less memory."""
    torch.manual_seed(0)
    model = build_llama(layers=8).eval().to(device, torch.float32)
    ids = (torch.arange(1500)[None].mul(7).add(3) % 90 + 5).to(device)
    request = {"target": targets.token(token=7), "method": method}
    whole = Explainer(model).explain({"input_ids": ids}, memory=8, **request).scores
    for memory in (0.02, 0.06, 0.1):  # some keep few blocks, some all but cheap values of them
        found = Explainer(model).explain({"input_ids": ids}, memory=memory, **request).scores
        assert _measure_error(found, whole) < 1e-3
    if device == "cuda":
        given = {"input_ids": ids}
        peaks = [_measure_peak(Explainer(model), given, memory=m, **request) for m in (8, 0.02)]
        assert peaks[1] < 0.6 * peaks[0]


def _measure_peak(explainer: Explainer, inputs: object, **request: object) -> int:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    explainer.explain(inputs, **request)
    return torch.cuda.max_memory_allocated() - before


def check_precision(device: str, precision: str, bound: float, compiles: bool) -> None:
    """Coarser products give nearly the same scores, and torch's switch is put back."""
    model, inputs = build("vit", device, torch.float32), give("vit", device, torch.float32)
    before = torch.get_float32_matmul_precision()
    explainer = Explainer(model, precision=precision, compile=compiles)
    if compiles:
        explainer.compile(inputs, target=1, method="tiba")
    found = explainer.explain(inputs, target=1, method="tiba").scores
    assert torch.get_float32_matmul_precision() == before
    error = _measure_error(found, _explain_in_float64("vit", "tiba"))
    assert error < bound
    if device == "cuda":
        assert error > 1e-6, "products are not coarser"


def check_untouched(device: str, compiles: bool) -> None:
    """The model is left exactly as it was found."""
    model, inputs = build("vit", device), give("vit", device)
    model.train()
    next(model.parameters()).requires_grad_(False)
    before = _describe(model)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    explainer = Explainer(model, compile=compiles)
    for method in METHODS:
        explainer.explain(inputs, target=1, method=method)
    assert _describe(model) == before
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


def _describe(model: nn.Module) -> list[object]:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [
        [(name, x.requires_grad, x.grad, x.data_ptr()) for name, x in model.named_parameters()],
        [(name, module.training) for name, module in model.named_modules()],
        [len(getattr(module, name)) for module in model.modules() for name in hooks],
        model.config._attn_implementation,
    ]


def _list_checks() -> dict[str, Check]:
    checks: dict[str, Check] = {}
    for name in ("vit", "bert", "llama", "swin"):
        for method in METHODS:
            checks[f"{name}, {method}: scores of a CPU in float64"] = partial(
                check_scores, name=name, method=method
            )
    compiled = [(name, method) for name in ("vit", "bert") for method in METHODS]
    for name, method in (*compiled, ("swin", "whence"), ("swin", "tiba")):
        checks[f"{name}, {method}: compiled as eager"] = partial(
            check_compiled, name=name, method=method
        )
    recurring = [*compiled[: len(METHODS)], ("bert", "whence"), ("bert", "attnlrp")]
    for name, method in recurring:
        checks[f"{name}, {method}: recurring"] = partial(check_recurring, name=name, method=method)
    checks["a capture that fails"] = check_failed_capture
    checks["changed weights are read"] = check_changed_weights
    checks["programs share memory"] = check_several_programs
    for method in METHODS:
        checks[f"long context, {method}"] = partial(check_long_context, method=method)
    for compiles in (False, True):
        how = "compiled" if compiles else "eager"
        checks[f"chunks, {how}"] = partial(check_chunks, compiles=compiles)
        checks[f"tf32, {how}"] = partial(
            check_precision, precision="tf32", bound=0.02, compiles=compiles
        )
        checks[f"bfloat16, {how}"] = partial(
            check_precision, precision="bfloat16", bound=0.1, compiles=compiles
        )
        checks[f"the model is left as it was, {how}"] = partial(check_untouched, compiles=compiles)
    return checks


CHECKS = _list_checks()
