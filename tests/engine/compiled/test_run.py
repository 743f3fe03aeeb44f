"""Which programs are made and kept: by request, shapes and weights, for one thread at a time."""

import copy
import dataclasses
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from tests.engine.helpers import make_request
from tests.tracing.attention_model import AttentionLayer, make_inputs
from tests.zoo import CASES, build_model
from whence import Explainer, WhenceError
from whence.engine.compiled import run
from whence.engine.compiled.making import CompiledProgram, list_checks
from whence.engine.compiled.run import CompiledRunner
from whence.inputs.arguments import is_plain
from whence.tracing.ops.guard import Guard

INFINITE = float("inf")


class FakeCompiler:
    """Counts what would be compiled, which computes eagerly."""

    def __init__(self):
        self.count = 0
        self.fails = False

    def __call__(self, name, compute, inputs, pool, is_asked=True):
        self.count += 1
        if self.fails:
            return None
        _, result = compute(inputs, Guard())
        names = list(inputs)

        def compute_tensors(*tensors):
            return compute(dict(zip(names, tensors, strict=True)), Guard())[0]

        found = result.layout, result.columns, None, list_checks(result)
        return CompiledProgram(compute_tensors, *found)


@pytest.fixture
def compiler(monkeypatch):
    compiler = FakeCompiler()
    monkeypatch.setattr(run, "record_program", compiler)
    return compiler


@pytest.fixture
def model():
    return AttentionLayer()


def has_result(runner, request, may_compile=True) -> bool:
    compiling = "when it pays" if may_compile else "never"
    return runner.run(request, INFINITE, 8, compiling=compiling) is not None


def test_a_program_is_made_once_and_where_it_may_be(compiler, model):
    runner, request = CompiledRunner(model), make_request(model=model, target=1)
    assert not has_result(runner, request, may_compile=False)
    assert compiler.count == 0
    for may_compile in (True, True, False):
        assert has_result(runner, request, may_compile)
    assert compiler.count == 1


def test_a_recorded_program_is_fused_when_asked_for_or_when_it_was_used_for_long(
    compiler, model, monkeypatch
):
    fused, request = [], make_request(model=model, target=1)

    def fuse(name, program, inputs, pool):
        program.recorded = None
        fused.append(name)

    monkeypatch.setattr(run, "fuse_program", fuse)

    def make_runner():
        runner = CompiledRunner(model)
        assert has_result(runner, request)
        (program,) = runner._programs.values()
        program.recorded, program.seconds = object(), run._SECONDS_BEFORE_FUSING / 3
        return runner

    runner = make_runner()
    for count in (0, 0, 1, 1):
        assert has_result(runner, request)
        assert len(fused) == count
    runner = make_runner()
    for _ in range(5):
        assert has_result(runner, request, may_compile=False)
    assert len(fused) == 1
    assert runner.run(request, INFINITE, 8, compiling="now") is not None
    assert len(fused) == 2


def test_a_program_computes_with_the_values_it_is_given(compiler, model):
    runner, x = CompiledRunner(model), make_inputs()
    for inputs, target in ((x, 1), (2 * x, 1), (-x, 0)):
        request = make_request(inputs, model, target=target)
        found = runner.run(request, INFINITE, 8, compiling="when it pays")()
        expected = Explainer(model).explain(inputs, target=target, method="tiba")
        assert torch.equal(found.scores[:, 0], expected.scores)
        assert torch.equal(found.logits, expected.logits)
        assert torch.equal(found.classes[:, 0], expected.target)
    assert compiler.count == 1


def test_a_program_is_for_any_classes_against_any_others(compiler, model):
    runner, x = CompiledRunner(model), make_inputs()
    for target, against in ((1, 0), ([2, 3], [0, 1])):
        request = make_request(x, model, target=target, against=against)
        found = runner.run(request, INFINITE, 8, compiling="when it pays")()
        expected = Explainer(model).explain(x, target=target, against=against, method="tiba")
        assert torch.equal(found.scores[:, 0], expected.scores)
    assert compiler.count == 1
    predicted = model(x).argmax(1).tolist()
    request = make_request(x, model, against=[(one + 1) % 2 for one in predicted])
    assert has_result(runner, request)
    same = runner.run(
        make_request(x, model, against=predicted), INFINITE, 8, compiling="when it pays"
    )
    with pytest.raises(WhenceError, match="both are class"):
        same()


def test_other_requests_and_shapes_are_other_programs(compiler, model):
    x = make_inputs()
    runner = CompiledRunner(model)
    requests = (
        make_request(x, model, target=1),
        make_request(x, model),
        make_request(x, model, classes=2),
        make_request(x, model, classes=[0, 1]),
        make_request(x, model, target=1, method="rollout"),
        make_request(x, model, target=1, start_layer=0, normalize_rows=True),
        make_request(x, model, target=1, rules="reference"),
        make_request(x[:1], model, target=1),
    )
    for number, request in enumerate(requests):
        assert not has_result(runner, request, may_compile=False)
        assert has_result(runner, request)
        assert compiler.count == number + 1
    # Which classes are named does not matter, only how many.
    assert has_result(runner, make_request(x, model, target=0), may_compile=False)
    assert not has_result(runner, make_request(x[:, 1:], model, target=1), may_compile=False)


def test_another_precision_and_other_maps_are_other_programs(compiler, model):
    runner, request = CompiledRunner(model), make_request(model=model)
    assert has_result(runner, request)
    assert runner.run(request, 1.0, 8, compiling="never") is None
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert not has_result(runner, request, may_compile=False)
    finally:
        torch.set_float32_matmul_precision(before)


def test_weights_may_change_but_not_move(compiler, model):
    runner, request = CompiledRunner(model), make_request(model=model)
    assert has_result(runner, request)
    model.head.data.mul_(2)  # the same memory
    assert has_result(runner, request, may_compile=False)
    model.head.data = model.head.data.clone()
    assert not has_result(runner, request, may_compile=False)


def test_weights_that_are_laid_out_otherwise_are_another_program(compiler, model):
    runner, request = CompiledRunner(model), make_request(model=model)
    assert has_result(runner, request)
    model.head.data = model.head.data.T
    assert not has_result(runner, request, may_compile=False)


def test_weights_of_another_type_are_another_program(compiler, model):
    model.unused = nn.Parameter(torch.ones(2, 2).half())
    runner, request = CompiledRunner(model), make_request(model=model)
    assert has_result(runner, request)
    model.unused.data = model.unused.data.view(torch.bfloat16)
    assert not has_result(runner, request, may_compile=False)


def test_another_mode_of_the_model_is_another_program(compiler, model):
    runner, request = CompiledRunner(model), make_request(model=model)
    assert has_result(runner, request)
    model.eval()
    assert not has_result(runner, request, may_compile=False)


def test_the_most_recently_used_programs_are_kept(compiler, model, monkeypatch):
    monkeypatch.setattr(run, "_MAX_PROGRAMS", 8)
    runner = CompiledRunner(model)
    x = make_inputs()[:1]
    requests = [make_request(x.repeat(n, 1, 1), model) for n in range(1, 10)]
    for request in (*requests[:8], *requests[:8]):
        assert has_result(runner, request)
    assert compiler.count == 8
    has_result(runner, requests[0])
    has_result(runner, requests[8])  # takes the place of the second
    assert compiler.count == 9
    assert has_result(runner, requests[0], may_compile=False)
    assert not has_result(runner, requests[1], may_compile=False)


def test_what_cannot_be_compiled_is_tried_once(compiler, model):
    runner, request = CompiledRunner(model), make_request(model=model)
    compiler.fails = True
    for _ in range(3):
        assert not has_result(runner, request)
    assert compiler.count == 1


def test_what_is_on_several_devices_is_not_compiled(compiler, model):
    request = make_request(model=model)
    model.elsewhere = nn.Linear(2, 2, device="meta")
    assert not has_result(CompiledRunner(model), request)
    assert compiler.count == 0


@pytest.mark.parametrize("extra", [[torch.ones(2)], object(), {"a": (torch.ones(2),)}])
def test_arguments_that_cannot_be_described_are_not_compiled(compiler, extra):
    class WithExtra(AttentionLayer):
        def forward(self, x, extra=None):
            return super().forward(x)

    model = WithExtra()
    described, undescribed = ({"x": make_inputs(), "extra": given} for given in ([1, "a"], extra))
    assert has_result(CompiledRunner(model), make_request(described, model))
    assert not has_result(CompiledRunner(model), make_request(undescribed, model))
    assert compiler.count == 1


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ({"a": [1, 2.0, ("b", None)], "c": True}, True),
        (torch.float32, True),
        ({"a": [torch.ones(2)]}, False),
        ({"a": object()}, False),
    ],
)
def test_values_that_are_described_by_how_they_are_written(value, plain):
    assert is_plain(value) is plain


@pytest.mark.parametrize("options", [{"keep_evidence": True}, {"method": "smoothgrad"}])
def test_evidence_and_many_passes_are_not_compiled(compiler, model, options):
    assert not has_result(CompiledRunner(model), make_request(model=model, **options))
    assert compiler.count == 0


def test_classes_that_do_not_exist_are_left_to_the_eager_run(compiler, model):
    assert not has_result(CompiledRunner(model), make_request(model=model, target=8))
    assert compiler.count == 0


def test_a_program_is_run_by_one_thread_at_a_time(monkeypatch, model):
    inside, most = [], []
    fake = FakeCompiler()

    def compile_slowly(*args):
        program = fake(*args)

        def run_slowly(*tensors):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()
            return program.run(*tensors)

        return dataclasses.replace(program, run=run_slowly)

    monkeypatch.setattr(run, "record_program", compile_slowly)
    runner = CompiledRunner(model)
    requests = [make_request(make_inputs() + n, model, target=0) for n in range(8)]

    def explain(request):
        return runner.run(request, INFINITE, 8, compiling="when it pays")().scores

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(explain, requests))
    assert len(most) == 8
    assert set(most) == {1}
    assert fake.count == 1
    for scores, request in zip(found, requests, strict=True):
        inputs = request.arguments.main
        expected = Explainer(model).explain(inputs, target=0, method="tiba").scores
        assert torch.equal(scores[:, 0], expected)


def test_copies_begin_anew(compiler, model):
    runner, request = CompiledRunner(model, "settings"), make_request(model=model)
    assert has_result(runner, request)
    for other in (
        copy.deepcopy(runner),
        pickle.loads(pickle.dumps(CompiledRunner(nn.Linear(1, 1)))),
    ):
        assert isinstance(other, CompiledRunner)
        assert not has_result(other, request, may_compile=False)
    assert has_result(runner, request, may_compile=False)


# As the explainer uses it ------------------------------------------------------------------------


@pytest.fixture
def case():
    return CASES["ViTForImageClassification-sdpa"]


def test_a_result_that_is_not_valid_is_computed_eagerly(monkeypatch, case):
    model, inputs = build_model(case), case.inputs()
    runs = []

    def compile_wrongly(name, compute, inputs, pool, is_asked):
        expected, result = compute(inputs, Guard())

        def run_wrongly(*_):
            runs.append(1)
            return expected._replace(scores=expected.scores + 1, valid=torch.tensor(False))

        return CompiledProgram(run_wrongly, result.layout, result.columns)

    monkeypatch.setattr(run, "record_program", compile_wrongly)
    plain = Explainer(model).explain(inputs, method="tiba").scores
    compiling = Explainer(model, compile=True)
    for _ in range(3):
        assert torch.equal(compiling.explain(inputs, method="tiba").scores, plain)
    assert len(runs) == 3


def test_another_head_is_another_number_of_classes(compiler, case):
    model, inputs = build_model(case), case.inputs()
    compiling = Explainer(model, compile=True)
    compiling.explain(inputs, target=0, method="tiba")
    more = 2 * model.classifier.out_features
    model.classifier = nn.Linear(model.classifier.in_features, more)
    for _ in range(3):
        assert compiling.explain(inputs, target=more - 1, method="tiba").logits.shape[1] == more
    assert compiler.count == 2
