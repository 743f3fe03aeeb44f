"""Fourier transforms against torch's, and their relevance against the Jacobian."""

import pytest
import torch
from torch import Tensor

from tests.tracing.recorders.definitions import (
    double,
    find_jacobian,
    read_each,
    record_function,
    share_terms,
)
from whence import NoRuleError

TRANSFORMS = {
    "one dimension": lambda x: torch.fft.fft(x).real,
    "imaginary": lambda x: torch.fft.fft(x, dim=1, norm="ortho").imag,
    "two dimensions": lambda x: torch.fft.fft2(x).real,
    "all of a sample": lambda x: torch.fft.fftn(x, dim=(1, 2), norm="forward").real,
    "back": lambda x: torch.fft.ifft2(torch.fft.fft2(x)).real,
    "of a complex number": lambda x: torch.fft.ifft(torch.complex(x, x.sin()), norm="ortho").imag,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_have_the_numbers_and_gradients_of_torch(name):
    function, x = TRANSFORMS[name], double(2, 3, 5)
    trace = record_function(function, x)
    assert torch.allclose(trace.logits, function(x).flatten(1))
    assert torch.allclose(read_each(trace, None), find_jacobian(function, x))
    assert torch.allclose(read_each(trace, "attnlrp"), read_each(trace, None))


def test_relevance_goes_by_positive_products():
    def function(x: Tensor) -> Tensor:
        return torch.fft.fft(x).real

    x = double(2, 3, 5)
    expected = share_terms(find_jacobian(function, x), x, lambda term: max(term, 0))
    assert torch.allclose(read_each(record_function(function, x), "stable"), expected, atol=1e-9)


def test_other_lengths_are_refused():
    trace = record_function(lambda x: torch.fft.fft(x, n=8).real, double(2, 3, 5))
    with pytest.raises(NoRuleError, match="`fft_fft`"):
        read_each(trace, "stable")
