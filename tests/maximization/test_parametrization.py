import pytest
import torch

from whence.maximization.parametrization import Fourier, transform_randomly


@pytest.mark.parametrize("size", [(32, 48), (33, 35), (2, 7)])
def test_fourier_starts_from_grey_at_any_size(size):
    waves = Fourier(size, torch.Generator().manual_seed(0), torch.zeros(0).double())
    picture = waves()
    assert picture.shape == (3, *size)
    assert (picture - 0.5).abs().max() < 0.3
    assert picture.std() > 1e-4


def test_fourier_has_the_spectrum_of_photos():
    """Amplitudes fall with frequency, and colours vary together."""
    waves = Fourier((64, 64), torch.Generator().manual_seed(0), torch.zeros(0).double())
    free = torch.logit(waves())
    spectrum = torch.fft.rfft2(free.mean(0), norm="ortho").abs()
    assert spectrum[1:4, 1:4].mean() > 4 * spectrum[16:20, 16:20].mean()
    assert torch.corrcoef(free.flatten(1)).min() > 0.5


def make_blob(height: int, width: int, row: float, column: float) -> torch.Tensor:
    down, right = torch.arange(height)[:, None] - row, torch.arange(width)[None] - column
    return torch.exp(-(down**2 + right**2) / 8).double().expand(3, -1, -1)


def find_centre(picture: torch.Tensor) -> torch.Tensor:
    """Where a make_blob is, from the middle of the picture."""
    weights = picture[0] / picture[0].sum()
    rows, columns = (torch.arange(n).double() - (n - 1) / 2 for n in weights.shape)
    return torch.stack([(weights.sum(1) * rows).sum(), (weights.sum(0) * columns).sum()])


def test_rotation_and_zoom_about_the_centre():
    picture = make_blob(64, 96, 20, 60)
    at = find_centre(picture)
    turned, scaled = [], []
    for seed in range(6):
        random = torch.Generator().manual_seed(seed)
        there = find_centre(transform_randomly(picture, random, 0, 20, 0))
        assert there.norm() == pytest.approx(float(at.norm()), abs=0.05)
        turned.append(torch.acos((there @ at / there.norm() / at.norm()).clamp(max=1)).rad2deg())
        there = find_centre(transform_randomly(picture, random, 0, 0, 0.2))
        assert torch.allclose(there / there.norm(), at / at.norm(), atol=0.01)
        scaled.append(there.norm() / at.norm())
    assert 5 < max(turned) <= 20.1
    assert 0.79 <= min(scaled) < 1 < max(scaled) <= 1.21


def test_jitter_shifts_around_the_edges():
    picture = torch.rand(3, 8, 9)
    random = torch.Generator().manual_seed(0)
    shifts = {(d, r): picture.roll((d, r), (1, 2)) for d in range(-2, 3) for r in range(-2, 3)}
    seen = set()
    for _ in range(60):
        found = transform_randomly(picture, random, 2, 0, 0)
        seen |= {shift for shift, same in shifts.items() if torch.equal(found, same)}
    assert len(seen) > 18
    assert transform_randomly(picture, random, 0, 0, 0) is picture
