"""Each path of the fuzzer is really taken."""

from collections import Counter

import pytest

from tests.fuzz.check import check_seed
from tests.fuzz.paths import PATHS
from whence.engine.compiled import program, run
from whence.tracing.block_calls import BlockCall
from whence.tracing.ops.chunked_attention import ChunkedAttention
from whence.tracing.segments import Segments

MARKS = {
    "chunks": (ChunkedAttention, "forward"),
    "blocks": (BlockCall, "repeat"),
    "segments": (Segments, "_compute_again"),
    "compiled": (run, "_confirm"),
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
    for seed in range(4):
        check_seed(seed, ("tiba",), path)
    assert calls[path] >= 2 if path in MARKS else not calls
