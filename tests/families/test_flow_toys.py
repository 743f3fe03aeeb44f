"""Flows of small models against products written here, and batches against single samples."""

import pytest
import torch
from torch import Tensor, nn

from whence import Explainer

WIDTH = 8


class Attention(nn.Module):
    """Attention of one head with its skip connection, whose map is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.map = torch.empty(0)

    def forward(
        self, x: Tensor, keys: Tensor | None = None, hidden: Tensor | None = None
    ) -> Tensor:
        keys = x if keys is None else keys
        scores = self.q(x)[:, None] @ self.k(keys)[:, None].mT
        scores = scores if hidden is None else scores.masked_fill(hidden[:, None, None], -1e30)
        weights = scores.softmax(-1)
        self.map = weights
        return x + self.out((weights @ self.v(keys)[:, None])[:, 0])


class Windows(nn.Module):
    """A text in windows of 4 tokens, pairs merged; the mean of what is no padding is read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.merge = nn.Embedding(20, WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.first, self.second, self.head = Attention(), Attention(), nn.Linear(WIDTH, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        batch, length = input_ids.shape
        windows = self.embed(input_ids).reshape(-1, 4, WIDTH)
        x = self.first(windows, hidden=attention_mask.reshape(-1, 4) == 0)
        x = self.merge(x.reshape(batch, length // 2, 2 * WIDTH))
        real = attention_mask[:, ::2]
        x = self.second(x, hidden=real == 0)
        return self.head((x * real[..., None]).sum(1) / real.sum(1, keepdim=True))


@pytest.mark.parametrize("method", ["rollout", "gae", "tiba", "whence", "attention_norm"])
def test_padding_in_windows_changes_nothing(method):
    model = Windows().double().eval()
    ids = torch.randint(1, 20, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, 8:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    scores = Explainer(model).explain(inputs, target=0, method=method).scores
    short = {name: x[:1, :8] for name, x in inputs.items()}
    alone = Explainer(model).explain(short, target=0, method=method).scores
    assert torch.allclose(scores[:1, :8], alone, rtol=1e-6, atol=0)
    assert not scores[0, 8:].any()


class Halves(nn.Module):
    """A stack for each half of the input; the second one attends to both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.cross = Attention(), Attention(), Attention()
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.first(x[:, :5]), self.second(x[:, 5:])
        return self.head(self.cross(second, torch.cat([first, second], 1)).mean(1))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("method", ["rollout", "gae"])
def test_parts_of_the_input_that_two_stacks_read(method, batch):
    model = Halves().double().eval()
    x = torch.randn(batch, 12, WIDTH, dtype=torch.float64)
    logits = model(x.requires_grad_())
    maps = [layer.map for layer in (model.first, model.second, model.cross)]
    if method == "gae":
        gradients = torch.autograd.grad(logits[:, 0].sum(), maps)
        pairs = zip(maps, gradients, strict=True)
        maps = [(weights * gradient).clamp(min=0) for weights, gradient in pairs]
    maps = [one[:, 0] for one in maps]
    factor = 0.5 if method == "rollout" else 1  # the rows of I + A sum to 2
    first, second = ((torch.eye(n) + one) * factor for n, one in ((5, maps[0]), (7, maps[1])))
    rows = torch.cat([torch.zeros(7, 5), torch.eye(7)], 1) + maps[2]
    expected = (rows * factor).mean(1, keepdim=True) @ torch.stack(
        [torch.block_diag(*pair) for pair in zip(first, second, strict=True)]
    )
    scores = Explainer(model).explain(x.detach(), target=0, method=method).scores
    assert torch.allclose(scores.double(), expected[:, 0].detach(), rtol=1e-5, atol=1e-7)


class WindowsFirst(nn.Module):
    """Four windows of three tokens that lie apart, one after the other, each of all samples."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = Attention(), Attention(), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch = len(x)
        windows = x.reshape(batch, 3, 4, WIDTH).permute(2, 0, 1, 3).reshape(-1, 3, WIDTH)
        windows = self.first(windows).reshape(4, batch, 3, WIDTH)
        return self.head(self.second(windows.permute(1, 2, 0, 3).reshape(x.shape)).mean(1))


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_windows_before_samples(batch):
    model = WindowsFirst().double().eval()
    x = torch.randn(batch, 12, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        model(x)
    within = torch.zeros(batch, 12, 12, dtype=torch.float64)
    for number, weights in enumerate(model.first.map[:, 0]):
        window, sample = divmod(number, batch)
        within[sample, window::4, window::4] = weights
    eye = torch.eye(12)
    expected = ((eye + model.second.map[:, 0]) @ (eye + within) / 4).mean(1)
    scores = Explainer(model).explain(x, target=0, method="rollout").scores
    assert torch.allclose(scores.double(), expected, rtol=1e-5, atol=1e-7)


class UpAndDown(nn.Module):
    """Pairs are merged, attend, and are added to the tokens that they were made of."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.coarse, self.last = Attention(), Attention(), Attention()
        self.merge, self.head = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        coarse = self.coarse(self.merge(x.reshape(len(x), -1, 2 * WIDTH)))
        return self.head(self.last(x + coarse.repeat_interleave(2, 1)).mean(1))


def test_merged_tokens_that_are_added_to_their_own():
    model = UpAndDown().double().eval()
    x = torch.randn(2, 8, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        model(x)
    first, coarse, last = (
        (torch.eye(one.map.shape[-1]) + one.map[:, 0]) / 2
        for one in (model.first, model.coarse, model.last)
    )
    up = torch.eye(4, dtype=x.dtype).repeat_interleave(2, 0)
    both = (torch.eye(8) + up @ coarse @ up.T / 2) / 2  # the mean of two terms
    expected = (last @ both @ first).mean(1)
    scores = Explainer(model).explain(x, target=0, method="rollout").scores
    assert torch.allclose(scores.double(), expected, rtol=1e-5, atol=1e-7)
