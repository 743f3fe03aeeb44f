"""A profile by stages: nothing is lost, and shared code counts for its callers."""

from types import SimpleNamespace

import pytest
from benchmarks.timing.stages import Profile

ROOT = ("/x/script.py", 1, "main")
BACKWARD = ("/x/src/whence/tracing/backward.py", 1, "walk")
RECORDER = ("/x/src/whence/tracing/recorder.py", 1, "record")
FORWARD = ("/x/transformers/models/vit/modeling_vit.py", 1, "forward")
OPERATION = ("/x/src/whence/tracing/ops/base.py", 1, "sum_to_shape")
LIBRARY = ("/x/torch/functional.py", 1, "einsum")
KERNEL = ("~", 0, "<built-in method torch._C.bmm>")

# For each function: its own seconds, inclusive seconds, and (own, inclusive) by caller.
CALLS = {
    ROOT: (0.001, 0.030, {}),
    FORWARD: (0.002, 0.014, {ROOT: (0.002, 0.014)}),
    RECORDER: (0.003, 0.012, {FORWARD: (0.003, 0.012)}),
    BACKWARD: (0.004, 0.015, {ROOT: (0.004, 0.015)}),
    OPERATION: (0.005, 0.005, {RECORDER: (0.001, 0.001), BACKWARD: (0.004, 0.004)}),
    LIBRARY: (0.006, 0.015, {RECORDER: (0.002, 0.008), BACKWARD: (0.004, 0.007)}),
    KERNEL: (0.009, 0.009, {LIBRARY: (0.009, 0.009)}),
}


@pytest.fixture
def stages():
    stats = {
        function: (1, 1, own, inclusive, {f: (1, 1, *edge) for f, edge in callers.items()})
        for function, (own, inclusive, callers) in CALLS.items()
    }
    return Profile(SimpleNamespace(stats=stats)).list_stages()


def test_all_time_is_in_some_stage(stages):
    total = sum(sum(stage.values()) for stage in stages.values())
    assert total == pytest.approx(1e3 * sum(own for own, _, _ in CALLS.values()))


def test_shared_code_counts_for_its_callers(stages):
    assert stages["recording: the model's own forward"]["python"] == pytest.approx(2.0)
    assert stages["recording: the recorder"]["python"] == pytest.approx(3.0 + 2.0)
    assert stages["recording: operations"]["python"] == pytest.approx(1.0)
    assert stages["backward pass: the walk"]["python"] == pytest.approx(4.0 + 4.0)
    assert stages["backward pass: operations"]["python"] == pytest.approx(4.0)
    assert stages["elsewhere"]["python"] == pytest.approx(1.0)


def test_compiled_code_is_told_apart(stages):
    # Of a call through a library's function, each caller has the share of its time there.
    assert stages["recording: the recorder"]["torch"] == pytest.approx(9.0 * 8 / 15)
    assert stages["backward pass: the walk"]["torch"] == pytest.approx(9.0 * 7 / 15)
