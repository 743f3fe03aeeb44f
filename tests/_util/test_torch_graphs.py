"""The tensors that a CUDA graph reads and that nothing else may free; and torch's compiler."""

import pytest
import torch
from torch import fx

from whence._util import torch_graphs
from whence._util.torch_graphs import (
    ConstantKeeper,
    compile_graph,
    precompile_header,
    trace_to_graph,
)


def list_places(tensors):
    return {one.untyped_storage().data_ptr() for one in tensors}


def test_all_is_kept_that_was_there_before_and_nothing_that_was_made():
    weight, bias, unread = torch.randn(4, 3), torch.randn(4), torch.randn(4)
    x = torch.randn(2, 3)
    rows = [torch.randn(1, 4), torch.randn(2, 4)]
    keeper = ConstantKeeper()
    with keeper:
        made = torch.nn.functional.linear(x, weight, bias).relu()
        joined = torch.cat([made, *rows])
        joined.sum(dim=0).mul_(2)  # what was made may be written to
    assert list_places(keeper.kept) == list_places([x, weight, bias, *rows])
    assert unread.data_ptr() not in list_places(keeper.kept)


def test_views_of_what_was_there_before_are_kept_once():
    weight = torch.randn(4, 4)
    keeper = ConstantKeeper()
    with keeper:
        halves = weight[:2].mT @ weight[2:]
        halves + halves.mT
    (kept,) = keeper.kept
    assert list_places([kept]) == list_places([weight])


@pytest.mark.parametrize(
    "write",
    [
        lambda buffer: buffer.add_(1),
        lambda buffer: buffer[1:].zero_(),
        lambda buffer: torch.add(torch.ones(3), 1, out=buffer),
    ],
)
def test_what_was_there_before_is_not_written_to(write):
    buffer = torch.randn(3)
    before = buffer.clone()
    with pytest.raises(RuntimeError, match="outlives"), ConstantKeeper():
        write(buffer)
    assert torch.equal(buffer, before)


def test_gradients_read_what_the_forward_pass_kept():
    weight = torch.randn(3, 3)
    x = torch.randn(3, requires_grad=True)
    keeper = ConstantKeeper()
    with keeper:
        (gradient,) = torch.autograd.grad((weight @ x).sum(), x)
    torch.testing.assert_close(gradient, weight.sum(0))
    assert list_places([weight]) <= list_places(keeper.kept)


@pytest.fixture
def headers(monkeypatch):
    """The headers that torch's compiler asks for, each of which fails."""
    from torch._inductor import codecache

    if not hasattr(codecache, "_precompile_header"):
        pytest.skip("This release of torch compiles no header in advance.")
    asked = []

    def fail(*args, **kwargs):
        asked.append((args, kwargs))
        raise RuntimeError("no header")

    monkeypatch.setattr(codecache, "_precompile_header", fail)
    # Nothing that this process has compiled is known.
    monkeypatch.setattr(codecache.CppPythonBindingsCodeCache, "cache", {})
    return asked


def test_the_header_of_kernels_is_compiled_in_advance(headers, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # where nothing is known
    x = torch.randn(64)
    thread = precompile_header()
    if thread is None:
        pytest.skip("In this release of torch, settings are those of all threads.")
    thread.join()
    graph, _ = trace_to_graph(lambda x: [(x * 2).sin()], [x])
    with pytest.raises(Exception, match="no header"):
        compile_graph(fx.GraphModule({}, graph), [x])
    in_advance, when_met = headers
    assert in_advance == when_met


@pytest.mark.parametrize(
    ("user", "knows", "options"),
    [(None, True, {"cpp.vec_isa_ok": True}), (None, False, {}), (False, True, {})],
)
def test_registers_are_tried_unless_the_compiler_knows_them(monkeypatch, user, knows, options):
    import torch._inductor
    from torch._inductor import config

    seen = []
    monkeypatch.setattr(torch._inductor, "compile", lambda *_, options: seen.append(options))
    monkeypatch.setattr(torch_graphs, "knows_registers", lambda: knows)
    graph, _ = trace_to_graph(lambda x: [x * 2], [torch.ones(2)])
    with config.patch({"cpp.vec_isa_ok": user}):
        compile_graph(fx.GraphModule({}, graph), [torch.ones(2)])
    assert seen == [options]


@pytest.mark.parametrize(
    ("told", "knows"), [("__AVX2__ __FMA__", True), ("__AVX__", False), (None, False)]
)
def test_a_compiler_is_asked_for_registers(monkeypatch, tmp_path, told, knows):
    """One that is older than the processor may not know them; and there may be none."""
    compiler = tmp_path / "compiler"
    if told is not None:
        lines = "".join(f"echo '#define {macro} 1'\n" for macro in told.split())
        compiler.write_text(f"#!/bin/sh\n{lines}")
        compiler.chmod(0o755)
    from torch._inductor import cpp_builder

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", lambda: str(compiler))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert torch_graphs.knows_registers.__wrapped__() is knows
