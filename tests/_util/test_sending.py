"""Values are copied to a device as they are."""

import pytest
import torch

from whence._util.sending import send

CPU = torch.device("cpu")


@pytest.mark.parametrize("values", [[[3], [1]], torch.tensor([[3], [1]])])
def test_values_stay(values):
    found = send(values, CPU)
    assert found.dtype == torch.int64
    assert found.tolist() == [[3], [1]]


def test_the_users_default_device_does_not_matter():
    with torch.device("meta"):
        assert send([4, 2], CPU).tolist() == [4, 2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_not_waited_for():
    device = torch.device("cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = send([1, 2], device)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found.tolist() == [1, 2]
