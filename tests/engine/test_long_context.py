"""Long contexts: attention maps are never all in memory, and the bound of memory holds."""

from functools import partial

import pytest
import torch
import transformers
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from whence import Explainer, targets
from whence.tracing.ops.chunked_attention import ChunkedAttention
from whence.tracing.ops.propagation import Propagation

METHODS = {
    "whence": {},
    "tiba": {},
    "gae": {},
    "rollout": {},
    "attention_norm": {},
    "attnlrp": {},
    "reslrp": {},
    "lrp": {},
    "input_x_gradient": {},
    "gradient": {"gradients": "balanced"},
    "fullgrad_plus": {},
    "value_zeroing": {},
    "integrated_gradients": {"steps": 2, "gradients": "balanced"},
}
TOKENS, LAYERS, HEADS = 200, 3, 4


def make_language_model(**options) -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        intermediate_size=48,
        vocab_size=50,
        initializer_range=0.3,
        **options,
    )
    return transformers.LlamaForCausalLM(config).eval().double()


def make_ids(tokens: int) -> torch.Tensor:
    return torch.arange(tokens)[None].mul(7).add(3) % 50


class LargestSum(TorchDispatchMode):
    """Notes how many bytes of attention maps were in memory together at most."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: list[tuple[StorageWeakRef, int]] = []
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        found = result if isinstance(result, list | tuple) else (result,)
        maps = [one for one in found if isinstance(one, torch.Tensor) and self._is_map(one)]
        if maps:
            self._alive = [(ref, size) for ref, size in self._alive if not ref.expired()]
            known = {ref.cdata for ref, _ in self._alive}
            for one in maps:
                storage = one.untyped_storage()
                ref = StorageWeakRef(storage)
                if ref.cdata not in known:
                    self._alive.append((ref, storage.nbytes()))
                    known.add(ref.cdata)
            self.bytes = max(self.bytes, sum(size for _, size in self._alive))
        return result

    def _is_map(self, value: torch.Tensor) -> bool:
        """Whether a tensor has queries and keys of all heads; heads are narrower than 16."""
        heads = value.shape[-3:-2] == (HEADS,) and value.is_floating_point()
        return heads and value.device.type == "cpu" and min(value.shape[-2:]) >= 16


@pytest.mark.parametrize("method", METHODS)
def test_all_methods_explain_a_language_model_alike_without_its_maps(method):
    explainer = Explainer(make_language_model())
    ids = make_ids(40).reshape(2, 20)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs["attention_mask"][0, :5] = 0
    asked = {"classes": [targets.token(-1, 3), targets.token(9, 4)], "method": method}
    expected = explainer.explain(inputs, **asked, **METHODS[method])
    found = explainer.explain(inputs, **asked, **METHODS[method], memory=1e-4)
    assert torch.allclose(found.scores, expected.scores, rtol=1e-8, atol=1e-12)


# Methods that make no maps of a text, and how many of one layer there are at once all the same.
UNMAPPED = {"whence": 4, "attnlrp": 0, "reslrp": 0, "input_x_gradient": 0, "gradient": 0}


@pytest.mark.parametrize("method", [*METHODS][:-2])
def test_attention_maps_are_never_all_in_memory(method):
    explainer = Explainer(make_language_model())
    inputs = {"input_ids": make_ids(TOKENS)}
    every_map = LAYERS * HEADS * TOKENS**2 * 8
    with LargestSum() as whole:
        explainer.explain(inputs, method=method, memory=1)
    with LargestSum() as chunks:
        explainer.explain(inputs, method=method, memory=1e-3)
    if method in UNMAPPED:  # but for those of one layer, which tell what the target reads
        assert whole.bytes <= UNMAPPED[method] * every_map / LAYERS
    else:
        assert whole.bytes > every_map
    assert chunks.bytes < every_map / 4


def measure_peak(run) -> int:
    """Measure how many bytes tensors take at most, beyond those before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    events = profiled.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    peak = now = 0
    for _, change in sorted(changes):
        now += change
        peak = max(peak, now)
    return peak


@pytest.mark.slow
@pytest.mark.parametrize("method", ["whence", "attnlrp"])
def test_the_bound_of_memory_holds_at_8192_tokens(method):
    tokens, bound = 8192, 1.5
    model = make_language_model(max_position_embeddings=tokens).float()
    explainer, inputs = Explainer(model), {"input_ids": make_ids(tokens)}
    every_map = LAYERS * HEADS * tokens**2 * 4
    peak = measure_peak(lambda: explainer.explain(inputs, method=method, memory=bound))
    assert every_map == 3 * 2**30
    assert peak < bound * 2**30


@pytest.mark.parametrize("method", ["reslrp", "whence"])
def test_terms_of_a_skip_connection_may_be_in_several_segments(method):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}
    config = transformers.GPTNeoXConfig(intermediate_size=24, initializer_range=0.3, **sizes)
    explainer = Explainer(transformers.GPTNeoXForCausalLM(config).eval().double())
    options = {} if method == "reslrp" else {"gradients": "residual"}
    asked = {"target": targets.token(-1, 3), "method": method, **options}
    inputs = {"input_ids": make_ids(20)}
    expected = explainer.explain(inputs, **asked)
    found = explainer.explain(inputs, **asked, memory=1e-5)
    assert torch.allclose(found.scores, expected.scores, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("classes", [1, 2])
def test_maps_are_made_once_for_reading_and_for_passing_them(monkeypatch, classes):
    model, made = make_language_model(), []
    split = ChunkedAttention.split_operations
    monkeypatch.setattr(
        ChunkedAttention, "split_operations", lambda self: (made.append(self), split(self))[1]
    )
    options = {"method": "tiba", "classes": classes, "memory": 0.001}
    explain = partial(Explainer(model).explain, {"input_ids": make_ids(TOKENS)}, **options)
    found, once = explain().scores, len(made)
    made.clear()
    monkeypatch.setattr(Propagation, "is_of", lambda *_: False)
    torch.testing.assert_close(explain().scores, found)
    chunks = len(made) - once
    # All layers but the first are passed, and in as many chunks as there are for one class.
    assert chunks == (LAYERS - 1) * -(-TOKENS // made[-1].queries_at_once)
