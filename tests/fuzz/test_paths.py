"""Each path of the fuzzer is really taken."""

from collections import Counter

import pytest

from tests.fuzz.check import check_seed
from tests.fuzz.paths import PATHS
from whence.engine.compiled import program
from whence.tracing.block_calls import BlockCall
from whence.tracing.ops.chunked_attention import ChunkedAttention
from whence.tracing.segments import Segments

MARKS = {
    "chunks": (ChunkedAttention, "forward"),
    "blocks": (BlockCall, "repeat"),
    "segments": (Segments, "_compute_again"),
    "fused": (program, "pad_attention"),
}


@pytest.mark.parametrize("path", PATHS)
def test_explanations_take_the_path(path, monkeypatch):
    calls = Counter()
    for name, (home, of) in MARKS.items():
        plain = getattr(home, of)

        def count(*args, name=name, plain=plain, **kwargs):
            calls[name] += 1
            return plain(*args, **kwargs)

        monkeypatch.setattr(home, of, count)
    reports = [check_seed(seed, ("tiba",), path) for seed in range(4)]
    assert calls[path] >= 2 if path in MARKS else not calls
    by_programs = sum(report.by_programs for report in reports)
    assert by_programs >= 2 if path in ("compiled", "fused") else by_programs == 0
