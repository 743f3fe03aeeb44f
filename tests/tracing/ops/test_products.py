"""The precision of matrix products."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.zoo import CASES, build_model
from whence import Explainer, methods
from whence.errors import WhenceError
from whence.tracing.ops.products import is_reduced_precision, matmul, use_precision


def test_products_are_rounded_and_nothing_else_is():
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    with use_precision("bfloat16"):
        assert is_reduced_precision()
        found = matmul(a, b)
    assert not is_reduced_precision()
    assert found.dtype == torch.float32
    assert torch.equal(found, (a.bfloat16() @ b.bfloat16()).float())
    assert torch.equal(matmul(a, b), a @ b)


def test_the_switch_for_tf32_is_put_back_by_the_last():
    before = torch.get_float32_matmul_precision()
    inside = []

    def work(_):
        with use_precision("tf32"):
            inside.append(torch.get_float32_matmul_precision())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(200)))
    assert set(inside) == {"high"}
    assert torch.get_float32_matmul_precision() == before


def test_precision_is_put_back_after_an_error():
    before = torch.get_float32_matmul_precision()
    for precision in ("tf32", "bfloat16"):
        with pytest.raises(ZeroDivisionError), use_precision(precision):
            1 / 0  # noqa: B018
    assert not is_reduced_precision()
    assert torch.get_float32_matmul_precision() == before


def test_another_precision_is_refused():
    with pytest.raises(WhenceError, match="precision is 'tf32' or 'bfloat16', or None"):
        Explainer(build_model(CASES["Bert-sdpa"]), precision="int8")


@pytest.mark.parametrize("method", ["whence", "tiba", "gae", "rollout", "attnlrp", "lrp"])
@pytest.mark.parametrize(
    "name", ["ViTForImageClassification-sdpa", "Bert-sdpa", "timm-vit-unfused"]
)
def test_scores_in_bfloat16_are_close(name, method):
    case = CASES[name]
    model, inputs = build_model(case), case.inputs()
    exact = Explainer(model).explain(inputs, method=method, target=1)
    coarse = Explainer(model, precision="bfloat16").explain(inputs, method=method, target=1)
    assert coarse.scores.dtype == exact.scores.dtype
    assert 0 < (coarse.scores - exact.scores).norm() < 0.1 * exact.scores.norm()
    assert methods.get(method)().propagates or not torch.equal(coarse.logits, exact.logits)
