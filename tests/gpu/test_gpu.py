"""The checks of `python -m tests.gpu`, one test each; without a GPU they are skipped."""

import pytest
import torch

from tests.gpu.checks import CHECKS


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("name", CHECKS)
def test_on_a_gpu(name):
    CHECKS[name]("cuda")


@pytest.mark.parametrize(
    "name",
    [
        "vit, whence: scores of a CPU in float64",
        "chunks, eager",
        "the model is left as it was, compiled",
    ],
)
def test_the_checks_themselves_on_a_cpu(name):
    CHECKS[name]("cpu")
