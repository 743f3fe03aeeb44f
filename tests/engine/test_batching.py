"""Batches go in chunks that keep to a bound of memory, and are explained alike."""

import math

import pytest
import torch

from tests.engine.helpers import make_request
from tests.tracing.attention_model import make_inputs
from tests.tracing.helpers import to_double
from tests.two_inputs import OneSequence, TwoTowers, make_pair
from tests.zoo import CASES, HandWrittenViT, build_model, make_images
from whence import Explainer, WhenceError
from whence.engine import batching
from whence.engine.batching import Batching, split_evenly
from whence.engine.eager import run_eagerly
from whence.engine.request import bound_forwards_bytes, bound_kept_bytes

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("samples", "most", "size"),
    [(64, 28, 22), (64, 64, 64), (64, 100, 64), (5, 0, 1), (7, 3, 3), (8, 5, 4), (1, 1, 1)],
)
def test_chunks_are_few_and_nearly_equal(samples, most, size):
    assert split_evenly(samples, most) == size


# Bounds ------------------------------------------------------------------------------------------


def test_the_user_names_gibibytes():
    assert bound_kept_bytes(CPU, 0.5) == bound_forwards_bytes(CPU, 0.5) == 2**29


def test_bounds_by_the_memory_that_is_free(monkeypatch):
    assert bound_kept_bytes(CPU, None) == bound_forwards_bytes(CPU, None) == 2 * 2**30
    for free, kept in ((3.0, 2), (3.9, 2), (4.1, 4), (7.9, 4), (100.0, 5.5), (0.4, 0.25)):
        monkeypatch.setattr("whence.engine.request._count_free", lambda _, free=free: free)
        assert bound_kept_bytes(CPU, None) == kept * 2**30
        assert bound_forwards_bytes(CPU, None) == free * 2**30


# Chunks ------------------------------------------------------------------------------------------


@pytest.fixture
def chunk_sizes(monkeypatch) -> list:
    """The number of samples of each eager run that ended well."""
    sizes = []

    def watch(request, *bounds):
        result = run_eagerly(request, *bounds)
        sizes.append(request.batch)
        return result

    monkeypatch.setattr(batching, "run_eagerly", watch)
    return sizes


def test_a_batch_that_fits_goes_at_once(chunk_sizes):
    Batching().run(make_request())
    assert chunk_sizes == [2]


def test_a_batch_that_is_too_large_is_halved_until_a_chunk_fits(chunk_sizes):
    x = make_inputs()[:1].expand(9, -1, -1)
    sample = run_eagerly(make_request(x), math.inf, math.inf).sample_bytes
    sizes = Batching()
    sizes.run(make_request(x, max_bytes=2.5 * sample))
    # Halves of 9 that are too large, then as evenly as what fits allows.
    assert chunk_sizes == [2, 2, 2, 2, 1]
    chunk_sizes.clear()
    sizes.run(make_request(x, max_bytes=3.5 * sample))
    assert chunk_sizes == [3, 3, 3]


def test_a_single_sample_is_explained_whatever_it_takes(chunk_sizes):
    Batching().run(make_request(max_bytes=1))
    assert chunk_sizes == [1, 1]


def test_evidence_and_many_passes_are_not_split(chunk_sizes):
    Batching().run(make_request(max_bytes=1, keep_evidence=True))
    Batching().run(make_request(max_bytes=1, method="smoothgrad", samples=2))
    assert chunk_sizes == [2, 2]


def test_how_much_a_sample_takes_is_known_from_the_first():
    case = CASES["ViTForImageClassification-sdpa"]
    explainer, pixels = Explainer(build_model(case)), case.inputs()["pixel_values"]
    explainer.explain({"pixel_values": pixels[:1]}, method="tiba")
    (one,) = explainer._batching._sample_bytes.values()
    explainer = Explainer(build_model(case))
    explainer.explain({"pixel_values": pixels}, method="tiba")
    (several,) = explainer._batching._sample_bytes.values()
    assert one == several


def test_what_fits_is_remembered_while_free_memory_varies(monkeypatch):
    free = iter(range(100_000, 0, -1))
    monkeypatch.setattr("whence.explainer.bound_kept_bytes", lambda *_: float(next(free)))
    case = CASES["timm-vit-fused"]
    explainer = Explainer(build_model(case))
    for _ in range(4):
        explainer.explain(case.inputs(), method="tiba")
    assert len(explainer._batching._sample_bytes) == 1


@pytest.mark.parametrize("method", ["whence", "tiba", "gae", "rollout"])
@pytest.mark.parametrize("name", ["timm-vit-fused", "Bert-sdpa"])
def test_a_batch_in_chunks_is_explained_alike(name, method):
    case = CASES[name]
    explainer, inputs = Explainer(build_model(case).double()), to_double(case.inputs())
    whole = explainer.explain(inputs, method=method, classes=2)
    [(shapes, sample)] = explainer._batching._sample_bytes.items()
    assert sample > 1e-6 * 2**30  # so that one goes after the other
    chunks = explainer.explain(inputs, method=method, classes=2, memory=1e-6)
    assert explainer._batching._sample_bytes[shapes] == sample
    assert torch.allclose(chunks.scores, whole.scores)
    assert torch.equal(chunks.target, whole.target)
    assert chunks.target_names == whole.target_names
    alone = explainer.explain(inputs, method=method, target=[0, 1, 2], memory=1e-6)
    assert alone.target.tolist() == [0, 1, 2]


@pytest.mark.parametrize("classes", [{"target": [0, 1]}, {"classes": [[0, 1], [1, 0]]}])
def test_too_few_targets_are_refused_in_chunks_of_any_size(classes):
    case = CASES["Bert-sdpa"]
    inputs = {name: value[:1].repeat(4, 1) for name, value in case.inputs().items()}
    explainer = Explainer(build_model(case))
    for memory in (1, 4e-4, 2e-4, 1e-4, 1e-7):  # in chunks of 4 samples, of 2 and of 1
        with pytest.raises(WhenceError, match="2 targets were given for 4"):
            explainer.explain(inputs, memory=memory, method="tiba", **classes)


# What cannot be cut ------------------------------------------------------------------------------


class Interacting(HandWrittenViT):
    """Its samples depend on each other."""

    def forward(self, image):
        return super().forward(image - image.mean(0))


def test_samples_that_depend_on_each_other_are_not_cut(chunk_sizes):
    model, pixels = Interacting(), make_images(32, 32)
    explainer = Explainer(model)
    whole = explainer.explain(pixels, method="tiba")
    assert torch.equal(explainer.explain(pixels, method="tiba", memory=1e-6).scores, whole.scores)
    assert chunk_sizes == [3, 3]
    compiled = Batching().run(make_request(pixels, model, max_bytes=1), lambda *_: None)
    assert chunk_sizes == [3, 3, 3, 3]  # one tells how many classes there are, for a program
    assert torch.equal(compiled.scores[:, 0], whole.scores)


@pytest.mark.parametrize("of", ["pixels", "ids"])
@pytest.mark.parametrize("images", [3, 4])
def test_as_many_texts_as_images(of, images, chunk_sizes):
    explainer, inputs = Explainer(TwoTowers()), make_pair(images, 3)
    whole = explainer.explain(inputs, of=of, method="tiba")
    chunks = explainer.explain(inputs, of=of, method="tiba", memory=1e-6)
    assert torch.allclose(chunks.scores, whole.scores, rtol=1e-4)
    assert torch.equal(chunks.target, whole.target)
    assert torch.allclose(chunks.logits, whole.logits, rtol=1e-4)
    rows = len(inputs[of])
    assert chunk_sizes == [rows, *[1] * rows]  # each text against each image: only these are cut


def test_several_inputs_are_cut_together_or_not_at_all(chunk_sizes):
    explainer, inputs = Explainer(OneSequence()), make_pair(3, 3)
    names = ["pixels", "ids"]
    whole = explainer.explain(inputs, of=names, method="gae")
    chunks = explainer.explain(inputs, of=names, method="gae", memory=1e-6)
    assert chunk_sizes == [3, 1, 1, 1]
    for name in names:
        assert torch.allclose(chunks[name].scores, whole[name].scores, atol=1e-6)
    chunk_sizes.clear()
    for images in (2, 3):
        inputs = make_pair(images, 3)
        Explainer(TwoTowers()).explain(inputs, of=names, method="gae", memory=1e-6)
        assert chunk_sizes.pop() == images
        assert not chunk_sizes


def test_the_user_says_what_is_cut(chunk_sizes):
    pixels = make_images(32, 32)
    Explainer(Interacting(), per_sample=()).explain(pixels, method="tiba", memory=1e-6)
    assert chunk_sizes == [1, 1, 1]
    with pytest.raises(WhenceError, match=r"per_sample is a tuple of names, such as \('x',\)"):
        Explainer(Interacting(), per_sample="x")
    with pytest.raises(WhenceError, match="per_sample names 'mask', which is no tensor of the in"):
        Explainer(Interacting(), per_sample=("mask",)).explain(pixels, memory=1e-6)


# Compiled chunks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ViTForImageClassification-sdpa", "Bert-sdpa"])
def test_compiled_chunks_have_one_shape(name, programs, monkeypatch):
    case = CASES[name]
    inputs = {
        key: torch.cat([value, value.flip(0), value])[:7]
        for key, value in to_double(case.inputs()).items()
    }
    model = build_model(case).double()
    plain = Explainer(model)
    whole = plain.explain(inputs, method="tiba", target=1)
    (sample,) = plain._batching._sample_bytes.values()
    compiling = Explainer(model, compile=True)
    for _ in range(3):
        found = compiling.explain(inputs, method="tiba", target=1, memory=3.5 * sample / 2**30)
        assert torch.allclose(found.scores, whole.scores, rtol=1e-10)
        assert torch.equal(found.logits.argmax(1), whole.logits.argmax(1))
        if whole.tokens is not None:
            assert found.tokens.strings == whole.tokens.strings
    (example,) = programs
    assert len(example[0]) == 3


def test_chunks_without_a_program_run_eagerly(chunk_sizes):
    asked = []

    def run_compiled(request, max_map_bytes, class_count):
        asked.append((request.batch, class_count))

    x = make_inputs()[:1].repeat(5, 1, 1)
    sample = run_eagerly(make_request(x), math.inf, math.inf).sample_bytes
    found = Batching().run(make_request(x, max_bytes=2.5 * sample), run_compiled)
    # A sample is run beforehand, so that chunks have one shape and classes are known.
    assert asked == [(2, 8)] * 3
    assert chunk_sizes == [1, 2, 2, 2]
    assert torch.allclose(found.scores, Batching().run(make_request(x)).scores)


def test_results_of_programs_are_waited_for_in_the_end():
    order = []

    def run_compiled(request, max_map_bytes, class_count):
        number = len(order)
        order.append(f"start {number}")

        def wait():
            order.append(f"wait {number}")
            return run_eagerly(request, math.inf, max_map_bytes)

        return wait

    Batching().run(make_request(max_bytes=1), run_compiled)
    assert order == ["start 0", "start 1", "wait 0", "wait 1"]
