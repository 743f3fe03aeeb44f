"""Fields of tokens: compared with what the values of the first attention change with."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.layouts import prove_layout
from whence.layout import TokenFields
from whence.tracing import record
from whence.tracing.dependence import find_fields, place_keys

WIDTH, SIZE = 8, 12


class Attends(nn.Module):
    """Attention over the tokens that a part of the model makes of its input."""

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        self.embed = embed
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.head((x + F.scaled_dot_product_attention(q, k, v)).mean(1))


class Tokens(nn.Module):
    """A stem, whose places become tokens, between others; perhaps in another order."""

    def __init__(self, *stem: nn.Module, before: int = 0, after: int = 0, order=None) -> None:
        super().__init__()
        self.stem = nn.Sequential(*stem)
        self.before = nn.Parameter(torch.randn(1, before, WIDTH))
        self.after = nn.Parameter(torch.randn(1, after, WIDTH))
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).mT
        x = x if self.order is None else x[:, self.order]
        others = [one.expand(len(x), -1, -1) for one in (self.before, self.after)]
        return torch.cat([others[0], x, others[1]], 1) + 0.1


class Residual(nn.Module):
    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class Gate(nn.Module):
    """Scales channels by a function of their means over all places."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.linear(x.mean((2, 3))).sigmoid()[..., None, None]


class Unfold(nn.Module):
    """Patches without a convolution, normalized as a whole."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side, self.norm = side, nn.LayerNorm(3 * side * side)
        self.linear = nn.Linear(3 * side * side, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        s = self.side
        x = x.reshape(b, c, h // s, s, w // s, s).permute(0, 2, 4, 1, 3, 5).flatten(3)
        return self.linear(self.norm(x)).permute(0, 3, 1, 2)


PATCH = nn.Conv2d(3, WIDTH, 4, 4)
STEMS = {
    "patches": Tokens(PATCH),
    "prefix and suffix": Tokens(PATCH, before=2, after=3),
    "another order": Tokens(PATCH, order=[3, 8, 1, 0, 2, 7, 6, 5, 4]),
    "not all of the image": Tokens(nn.Conv2d(3, WIDTH, 5, 5), before=1),
    "gaps": Tokens(nn.Conv2d(3, WIDTH, 2, 4)),
    "no convolution": Tokens(Unfold(4)),
    "overlapping": Tokens(nn.Conv2d(3, WIDTH, 4, 2), before=1),
    "padded": Tokens(nn.Conv2d(3, WIDTH, 7, 4, 3)),
    "a stem": Tokens(nn.Conv2d(3, 6, 3, 2, 1), nn.GELU(), nn.Conv2d(6, WIDTH, 3, 2, 1)),
    "depthwise": Tokens(nn.Conv2d(3, 6, 2, 2), nn.Conv2d(6, WIDTH, 2, 2, groups=2), before=1),
    "pooled": Tokens(nn.Conv2d(3, WIDTH, 1), nn.MaxPool2d(2), nn.AvgPool2d(2)),
    "batch norm": Tokens(PATCH, nn.BatchNorm2d(WIDTH), nn.Hardswish()),
}
# What each stem depends on in truth, or stands for where norms and branches are left out.
PLAIN = {**STEMS}
STEMS |= {
    "group norm": Tokens(PATCH, nn.GroupNorm(2, WIDTH)),
    "gated": Tokens(PATCH, nn.GELU(), Gate(), nn.Conv2d(WIDTH, WIDTH, 1)),
    "convolved positions": Tokens(PATCH, Residual(nn.Conv2d(WIDTH, WIDTH, 3, 1, 1)), before=1),
}
PLAIN |= {
    "group norm": STEMS["patches"],
    "gated": STEMS["patches"],
    "convolved positions": Tokens(PATCH, before=1),
}


def find_true_fields(stem: nn.Module, x: Tensor) -> TokenFields:
    """Fields by changing the input, element by element."""
    with torch.no_grad():
        before = stem(x)
        masks = torch.zeros(before.shape[1], *x.shape, dtype=torch.bool)
        for sample in range(len(x)):
            for index in range(x[sample].numel()):
                changed = x.clone()
                changed[sample].view(-1)[index] += 3.0
                differs = (stem(changed) != before).any(-1)
                masks[:, sample].flatten(1)[:, index] = differs[sample]
                assert not differs[torch.arange(len(x)) != sample].any()
    return TokenFields.from_masks(masks)


@pytest.mark.parametrize("name", STEMS)
def test_fields_are_what_tokens_change_with(name):
    x = torch.randn(2, 3, SIZE, SIZE)
    model = Attends(STEMS[name]).eval()
    trace = record(model, (x,), {}, 0)
    found = find_fields(trace, place_keys(trace, trace.sites[0]), 0, x.shape)
    if name == "pooled":  # a maximum changes with one element, but stands for all
        expected = find_true_fields(Tokens(nn.Conv2d(3, WIDTH, 4, 4)), x)
    else:
        expected = find_true_fields(PLAIN[name].eval(), x)
    assert found.shape == (3, SIZE, SIZE)
    assert torch.equal(found.counts, expected.counts)
    assert torch.equal(found.starts, expected.starts)
    assert torch.equal(found.stops, expected.stops)
    assert found.are_boxes


@pytest.mark.parametrize("name", ["a stem", "pooled", "batch norm", "gated", "overlapping"])
def test_fields_are_found_without_activations(name):
    """Where memory is short they were freed, and are not computed again for marks."""
    x = torch.randn(2, 3, SIZE, SIZE)
    model = Attends(STEMS[name]).eval()
    whole, freed = (record(model, (x,), {}, 0, max_segment_bytes=n) for n in (1e9, 1))
    freed.segments.run_again = None
    found = [find_fields(t, place_keys(t, t.sites[0]), 0, x.shape) for t in (whole, freed)]
    assert torch.equal(found[0].starts, found[1].starts)
    assert torch.equal(found[0].stops, found[1].stops)


@pytest.mark.parametrize(
    ("name", "grid", "first"),
    [
        ("patches", (3, 3), 0),
        ("prefix and suffix", (3, 3), 2),
        ("another order", (3, 3), 0),
        ("not all of the image", (2, 2), 1),
        ("gaps", (3, 3), 0),
        ("overlapping", (5, 5), 1),
        ("padded", (3, 3), 0),
        ("a stem", (3, 3), 0),
        ("convolved positions", (3, 3), 1),
    ],
)
def test_grids(name, grid, first):
    x = torch.randn(2, 3, SIZE, SIZE)
    layout = prove_layout(record(Attends(STEMS[name]).eval(), (x,), {}, 0), x)
    assert (layout.grid, layout.prefix, layout.doubt) == (grid, first, "")
    assert layout.by_value == (name == "another order")


def test_an_element_of_two_cells_goes_to_the_nearer():
    x = torch.randn(1, 3, SIZE, SIZE)
    trace = record(Attends(STEMS["overlapping"]).eval(), (x,), {}, 0)
    layout = prove_layout(trace, x)
    numbers = layout.number_elements(x.shape[1:], x.device)[0, :, 0]
    centres = [2 * cell + 1.5 for cell in range(5)]
    for row, number in enumerate((numbers // 5).tolist()):
        distances = [abs(row - centre) for centre in centres]
        assert distances[number] == min(distances)


class Signal(nn.Module):
    """Convolutions over time; padding is set to zero afterwards, as in Wav2Vec2."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 6, 5, 3), nn.GELU(), nn.Conv1d(6, WIDTH, 3, 2))
        self.around = nn.Conv1d(WIDTH, WIDTH, 9, 1, 4)
        self.rest = Attends(nn.Identity())

    def forward(self, signal: Tensor, lengths: Tensor) -> Tensor:
        x = self.stem(signal[:, None]).mT
        x[torch.arange(x.shape[1]) >= lengths[:, None]] = 0
        return self.rest(x + self.around(x.mT).mT)


def test_padding_of_a_signal():
    signal, lengths = torch.randn(2, 60), torch.tensor([9, 5])
    trace = record(Signal(), (signal, lengths), {}, 0)
    layout = prove_layout(trace, signal)
    assert layout.grid == (9,)
    assert layout.by_value
    marked = layout.mark_padding(None, 2)
    assert marked.tolist() == [[False] * 9, [False] * 5 + [True] * 4]


def test_frames_before_or_after_the_channels():
    class Video(nn.Module):
        def __init__(self, frames_first: bool) -> None:
            super().__init__()
            self.patches, self.frames_first = (
                nn.Conv3d(3, WIDTH, (2, 4, 4), (2, 4, 4)),
                frames_first,
            )

        def forward(self, x: Tensor) -> Tensor:
            x = x.transpose(1, 2) if self.frames_first else x
            return self.patches(x).flatten(2).mT

    for frames_first in (True, False):
        x = torch.randn(1, 4, 3, 8, 12) if frames_first else torch.randn(1, 3, 4, 8, 12)
        layout = prove_layout(record(Attends(Video(frames_first)), (x,), {}, 0), x)
        assert layout.grid == (2, 2, 3)
        assert layout.axes == ((0, 2, 3) if frames_first else (1, 2, 3))
        numbers = layout.number_elements(x.shape[1:], x.device)
        assert int(numbers.max()) == 11


def test_what_cannot_be_known_is_in_doubt():
    class Mixes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return PATCH(x.cumprod(-1)).flatten(2).mT  # whence does not know what it mixes

    x = torch.randn(2, 3, SIZE, SIZE)
    layout = prove_layout(record(Attends(Mixes()), (x,), {}, 0), x)
    assert layout.grid is None
    assert "could not be proven" in layout.doubt
