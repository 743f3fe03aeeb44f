"""How many CPUs there are, and leaving them to other processes."""

import pytest
import torch

from whence._util.cpus import count_cpus, leave_cpus_to_others


def test_there_is_a_cpu():
    assert count_cpus() >= 1


@pytest.mark.parametrize("needed", [True, False])
def test_one_thread_computes_where_others_need_the_cpus(needed):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with leave_cpus_to_others(needed):
            assert torch.get_num_threads() == (1 if needed else 2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
