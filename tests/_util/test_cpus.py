"""How many CPUs there are, and leaving them to other processes."""

import pytest
import torch

from whence._util import cpus
from whence._util.cpus import count_cpus, leave_cpus_to_others, read_cpu_vendor


def test_there_is_a_cpu():
    assert count_cpus() >= 1


@pytest.mark.parametrize(
    ("text", "vendor"),
    [
        ("processor\t: 0\nvendor_id\t: AuthenticAMD\n\nvendor_id\t: Other\n", "AuthenticAMD"),
        ("processor\t: 0\nmodel name\t: ARMv8\n", ""),
    ],
)
def test_the_maker_of_the_processor(tmp_path, monkeypatch, text, vendor):
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(cpus, "_CPUS", str(tmp_path / "cpuinfo"))
    assert read_cpu_vendor() == vendor


def test_other_systems_name_the_maker_last(tmp_path, monkeypatch):
    monkeypatch.setattr(cpus, "_CPUS", str(tmp_path / "nothing"))
    monkeypatch.setattr("platform.processor", lambda: "AMD64 Family 25 Model 33, AuthenticAMD")
    assert read_cpu_vendor() == "AuthenticAMD"


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
