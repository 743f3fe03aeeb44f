"""Imputed pixels against the equations of ROAD, written plainly and solved by scipy."""

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.sparse import linalg

from whence import WhenceError
from whence.metrics import imputation as im


def solve_plainly(image, hidden):
    """Each hidden pixel is the weighted mean of its neighbours inside of the image."""
    _, height, width = image.shape
    at = {(int(y), int(x)): number for number, (y, x) in enumerate(np.argwhere(hidden))}
    matrix, right = sparse.lil_matrix((len(at), len(at))), np.zeros((len(at), len(image)))
    for (y, x), number in at.items():
        for row in (y - 1, y, y + 1):
            for column in (x - 1, x, x + 1):
                if (row, column) == (y, x) or not (0 <= row < height and 0 <= column < width):
                    continue
                weight = 1 / 6 if row == y or column == x else 1 / 12
                matrix[number, number] += weight
                if hidden[row, column]:
                    matrix[number, at[row, column]] -= weight
                else:
                    right[number] += weight * image[:, row, column]
    solved = linalg.spsolve(matrix.tocsc(), right).reshape(len(at), -1)
    result = image.copy()
    for (y, x), number in at.items():
        result[:, y, x] = solved[number]
    return result


def hide(kind, size):
    scores = torch.rand(size)
    if kind == "pixels":
        return scores < 0.7
    if kind == "patches":
        patches = torch.rand(size[0] // 4 + 1, size[1] // 4 + 1) < 0.6
        return patches.repeat_interleave(4, 0).repeat_interleave(4, 1)[: size[0], : size[1]]
    hidden = torch.ones(size, dtype=torch.bool)
    hidden[size[0] // 2, 0] = kind == "but one"
    hidden[0, size[1] // 2] = kind != "but one"
    return hidden


@pytest.mark.parametrize("size", [(24, 24), (13, 18), (1, 9), (2, 1)])
@pytest.mark.parametrize("kind", ["pixels", "patches", "but one", "but another"])
def test_hidden_pixels_solve_the_equations(kind, size):
    torch.manual_seed(len(kind))
    pixels, hidden = torch.rand(1, 3, *size), hide(kind, size)
    if hidden.all():
        hidden[0, 0] = False
    found = im.impute_pixels(pixels, hidden[None])[0].double().numpy()
    expected = solve_plainly(pixels[0].double().numpy(), hidden.numpy())
    assert np.abs(found - expected).max() < 3 * im.TOLERANCE
    assert (found == pixels[0].double().numpy())[:, ~hidden.numpy()].all()


def test_a_large_hole_is_solved_in_single_precision():
    rows = torch.linspace(0, 1, 224)[:, None].expand(224, 224)
    pixels = torch.stack([rows, rows.T, (rows + rows.T) / 2])[None]
    hidden = torch.zeros(1, 224, 224, dtype=torch.bool)
    hidden[:, 10:214, 10:214] = True
    # What is linear is the mean of its neighbours, so a hole in it is filled without a trace.
    assert (im.impute_pixels(pixels, hidden) - pixels).abs().max() < 3 * im.TOLERANCE


def test_nothing_hidden_and_everything_hidden():
    pixels = torch.rand(2, 3, 6, 5)
    hidden = torch.stack([torch.zeros(6, 5), torch.ones(6, 5)]).bool()
    found = im.impute_pixels(pixels, hidden)
    assert torch.equal(found[0], pixels[0])
    torch.testing.assert_close(found[1], pixels[1].mean((1, 2), keepdim=True).expand(3, 6, 5))


def test_an_image_is_imputed_alike_in_every_batch():
    pixels, hidden = torch.rand(5, 3, 16, 16), torch.rand(5, 16, 16) < 0.8
    hidden[1, :15] = True  # takes longer than the others
    together = im.impute_pixels(pixels, hidden)
    for at in range(5):
        alone = im.impute_pixels(pixels[at : at + 1], hidden[at : at + 1])
        assert torch.allclose(alone[0], together[at], rtol=0, atol=1e-6)


def test_noise_is_drawn_by_name_and_added_to_hidden_pixels():
    noise = im.draw_noise(["a", "b"], (3, 40, 40))
    assert torch.equal(im.draw_noise(["c", "b"], (3, 40, 40))[1], noise[1])
    assert not torch.equal(noise[0], noise[1])
    assert noise.std() == pytest.approx(1, abs=0.05)
    pixels, hidden = torch.rand(2, 3, 40, 40), torch.rand(2, 40, 40) < 0.5
    added = im.impute_pixels(pixels, hidden, noise) - im.impute_pixels(pixels, hidden)
    torch.testing.assert_close(added, hidden[:, None] * 0.01 * noise, rtol=0, atol=1e-6)


def test_wrong_shapes_are_refused():
    with pytest.raises(WhenceError, match="have to fit together"):
        im.impute_pixels(torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 5).bool())
