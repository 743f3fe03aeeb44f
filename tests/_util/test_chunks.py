import pytest
import torch

from whence._util.chunks import run_in_chunks
from whence.errors import MemoryShortError


@pytest.mark.parametrize("fits", [1, 3, 100])
def test_chunks_are_halved_until_they_fit(fits):
    sizes = []

    def work(chunk):
        if len(chunk) > fits:
            raise torch.OutOfMemoryError("full")
        sizes.append(len(chunk))
        return torch.arange(chunk.start, chunk.stop)

    assert run_in_chunks(10, 4, work).tolist() == list(range(10))
    assert max(sizes) <= min(4, fits)


def test_memory_that_is_too_small_for_one_row():
    def work(_chunk):
        raise torch.OutOfMemoryError("full")

    with pytest.raises(MemoryShortError, match="too small for this model"):
        run_in_chunks(5, 4, work)
