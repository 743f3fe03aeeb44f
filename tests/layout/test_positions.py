import pytest
import torch
from torch import nn

from tests.zoo import HandWrittenViT, make_images
from whence import Explainer, Layout, WhenceError
from whence.layout import compute_pooling, find_layout

IMAGE = torch.zeros(1, 3, 224, 224)
TEXT = torch.zeros(1, 12, dtype=torch.long)


@pytest.mark.parametrize(
    ("tokens", "image", "grids", "expected"),
    [
        (197, IMAGE, [(14, 14)], ((14, 14), 1)),
        (198, IMAGE, [(14, 14)], ((14, 14), 2)),
        (261, IMAGE, [(16, 16)], ((16, 16), 5)),
        (196, IMAGE, [(14, 14)], ((14, 14), 0)),
        (25, torch.zeros(1, 3, 64, 96), [(4, 6)], ((4, 6), 1)),
        (11, torch.zeros(1, 3, 24, 24), [(2, 2)], ((2, 2), 7)),
        (17, torch.zeros(1, 3, 12, 12), [(3, 3)], ((3, 3), 8)),
        (50, IMAGE, [(56, 56), (28, 28), (7, 7), (7, 7)], ((7, 7), 1)),  # a convolutional stem
        (730, IMAGE, [(27, 27)], ((27, 27), 1)),  # patches that overlap
        (1025, torch.zeros(1, 128, 1024), [(8, 128)], ((8, 128), 1)),  # a spectrogram
        (197, IMAGE, [], ((14, 14), 1)),  # patches without a convolution
        (25, torch.zeros(1, 3, 64, 96), [], ((4, 6), 1)),
        (12, TEXT, [], (None, 0)),
        (12, torch.zeros(1, 12, 32), [], (None, 0)),  # embeddings
    ],
)
def test_find_layout(tokens, image, grids, expected):
    found = find_layout(Layout(), tokens, image, grids)
    assert (found.grid, found.prefix) == expected


@pytest.mark.parametrize(
    ("tokens", "grids"),
    [(49, [(56, 56)]), (16, []), (1000, [])],  # windows; 9 patches and 7 more, or 16; none
)
def test_an_unknown_grid_is_an_error(tokens, grids):
    image = torch.zeros(1, 3, 24, 24)
    with pytest.raises(WhenceError, match=rf"how {tokens} tokens lie on an image of 24x24.*Layout"):
        find_layout(Layout(), tokens, image, grids)


def test_a_given_layout_is_used_or_refused():
    image = torch.zeros(1, 3, 24, 24)
    assert find_layout(Layout(prefix=7), 16, image, []).grid == (3, 3)
    assert find_layout(Layout(grid=(2, 8)), 17, image, [(4, 4)]) == Layout((2, 8), 1)
    for wrong in (Layout(grid=(5, 5)), Layout(grid=(4, 4), prefix=3)):
        with pytest.raises(WhenceError, match=r"The layout does not fit: .* the model's 17 tokens"):
            find_layout(wrong, 17, image, [(4, 4)])
    for pooled in ((), (17,)):
        with pytest.raises(WhenceError, match="name some of the tokens 0 to 16"):
            find_layout(Layout(pooled=pooled), 17, image, [(4, 4)])


def test_pooling_weights_follow_the_gradient():
    dependence = torch.tensor(
        [[3.0, 0, 0, 0], [0, 1, 2, 3], [2, 0, 0, 0], [6, 1, 1, 0], [0, 0, 0, 0]]
    )
    weights = compute_pooling(dependence, Layout(prefix=1))
    expected = [
        [1, 0, 0, 0],
        [0, 1 / 3, 1 / 3, 1 / 3],
        [1, 0, 0, 0],
        [0.75, 0.125, 0.125, 0],
        [0] * 4,
    ]
    assert torch.allclose(weights, torch.tensor(expected))


def test_given_pooled_tokens():
    model = HandWrittenViT()
    given = Explainer(model, layout=Layout(pooled=(3, 4))).explain(
        make_images(32, 32), method="tiba", keep_evidence=True
    )
    assert given.evidence.pooling[0].nonzero().flatten().tolist() == [3, 4]
    found = Explainer(model).explain(make_images(32, 32), method="tiba")
    assert not torch.allclose(given.scores, found.scores)


def test_a_given_grid_shapes_the_scores():
    class Odd(nn.Module):
        """Patches of 4 x 8 pixels, cut out by hand."""

        def __init__(self) -> None:
            super().__init__()
            self.vit = HandWrittenViT(patch=8, size=32)
            self.embed = nn.Linear(3 * 4 * 16, 32)

        def forward(self, image):
            x = image.reshape(len(image), 3, 8, 4, 2, 16).permute(0, 2, 4, 1, 3, 5).flatten(3)
            x = self.embed(x.flatten(1, 2))
            for block in self.vit.blocks:
                x = block(x)
            return self.vit.head(x.mean(1))

    result = Explainer(Odd(), layout=Layout(grid=(8, 2))).explain(make_images(32, 32))
    assert result.grid == (8, 2)
    assert result.heatmap((32, 32)).shape == (3, 32, 32)
