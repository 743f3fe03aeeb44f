"""Layouts are kept for inputs of one kind, but not where values decide what tokens stand for."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from whence import Explainer, WhenceError

WIDTH, TOKENS, CHOSEN = 6, 10, 5


def choose(x: Tensor) -> Tensor:
    return x.detach().norm(dim=-1).topk(CHOSEN, dim=1)[1]


def slice_rows(x: Tensor) -> Tensor:
    rows = zip(x, choose(x).tolist(), strict=True)
    return torch.stack([torch.cat([one[n : n + 1] for n in chosen]) for one, chosen in rows])


def mask(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[:2]).scatter(1, choose(x), 1.0)[..., None]


SELECTIONS = {
    "gather": lambda x: x.gather(1, choose(x)[..., None].expand(-1, -1, WIDTH)),
    "product": lambda x: nn.functional.one_hot(choose(x), TOKENS).float() @ x,
    "slices": slice_rows,
    "mask": lambda x: x * mask(x),
    "where": lambda x: torch.where(mask(x) > 0, x, 0.0),
}


class Selecting(nn.Module):
    """Attention among the tokens of the largest norm, or from all tokens to these."""

    def __init__(self, selection: str, asks_all: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.selection, self.asks_all = selection, asks_all
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, 2)

    def attend(self, x: Tensor, qkv: nn.Module) -> Tensor:
        q, k, v = qkv(x)[:, None].chunk(3, -1)
        return x + ((q @ k.mT).softmax(-1) @ v)[:, 0]

    def forward(self, x: Tensor) -> Tensor:
        chosen = SELECTIONS[self.selection](x)
        if self.asks_all:
            # The queries are all tokens, so that there are two sequences.
            q, k, v = self.qkv[0](x), *self.qkv[1](chosen)[:, None].chunk(3, -1)[1:]
            q = q[:, None, :, :WIDTH]
            return self.head(((q @ k.mT).softmax(-1) @ v)[:, 0].mean(1))
        return self.head(self.attend(chosen, self.qkv[0]).mean(1))


@pytest.mark.parametrize("asks_all", [False, True])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_tokens_that_values_choose(selection, asks_all):
    explainer = Explainer(Selecting(selection, asks_all).eval())
    for seed in range(3):
        x = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))
        scores = explainer.explain(x, target=0, method="rollout").scores
        found = [row.nonzero()[:, 0].tolist() for row in scores]
        assert found == choose(x).sort()[0].tolist()


def test_layouts_of_inputs_of_one_shape_are_kept():
    model = Selecting("gather", asks_all=False).eval()
    model.forward = lambda x: model.head(model.attend(x, model.qkv[0]).mean(1))
    explainer = Explainer(model)
    for seed in range(2):
        x = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))
        explainer.explain(x, target=0, method="rollout")
    assert len(explainer._subject.layouts) == 1


class Depths(nn.Module):
    """Logits of tokens that leave the last layer, others upstream of it, or no skip connection."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(9, WIDTH)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(3))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        states, branches = [self.embedding(ids)], []
        for qkv in self.qkv:
            q, k, v = qkv(states[-1])[:, None].chunk(3, -1)
            branches.append(((q @ k.mT).softmax(-1) @ v)[:, 0])
            states.append(states[-1] + branches[-1])
        pairs = (states[3], 0 * states[3]), (states[3], states[1]), (branches[2], states[1])
        read = [[head(x.mean(1)) for head, x in zip(self.heads, two, strict=True)] for two in pairs]
        return torch.cat([one + other for one, other in read], 1)


def explain_depth(explainer: Explainer, target: int, method: str) -> Tensor | str:
    """Scores, or the sentence of a refusal."""
    ids = torch.tensor([[3, 1, 4, 2, 5]])
    try:
        return explainer.explain(ids, target=target, method=method).scores
    except WhenceError as error:
        return str(error)


@pytest.mark.parametrize("method", ["gae", "tiba", "whence", "shared_evidence"])
@pytest.mark.parametrize("targets", itertools.permutations(range(3), 2))
def test_targets_that_read_other_layers(method, targets):
    """A layout that was found for one target does not serve another that reads other sums."""
    model = Depths().eval()
    explainer = Explainer(model)
    for target in targets:
        found = explain_depth(explainer, target, method)
        alone = explain_depth(Explainer(model), target, method)
        assert found == alone if isinstance(alone, str) else torch.equal(found, alone)
    assert isinstance(explain_depth(explainer, 0, method), Tensor)


class Entering(nn.Module):
    """Attention among all tokens but the first; the second logit reads that one, too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.first = nn.Embedding(9, WIDTH), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.cat([self.first.expand(len(ids), -1, -1), self.embedding(ids)], 1)
        y = x[:, 1:]
        for number, qkv in enumerate(self.qkv):
            q, k, v = qkv(y if number else x[:, 1:])[:, None].chunk(3, -1)
            y = y + ((q @ k.mT).softmax(-1) @ v)[:, 0]
        read = self.heads[0](y.mean(1))
        return torch.cat([read, read + self.heads[1](x).mean(1)], 1)


@pytest.mark.parametrize("method", ["shared_evidence", "attcat"])
@pytest.mark.parametrize("targets", [(0, 1), (1, 0)])
def test_targets_that_read_what_enters_a_layer(method, targets):
    model = Entering().eval()
    explainer = Explainer(model)
    for target in targets:
        found = explain_depth(explainer, target, method)
        assert torch.equal(found, explain_depth(Explainer(model), target, method))


class Cut(nn.Module):
    """Attention among four tokens, from an offset on."""

    offset = 0

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, 2)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(
        self,
        input_ids: Tensor,
        offset: int = 0,
        chosen: list[Tensor] | None = None,
        unread: list[Tensor] | None = None,
    ):
        x = self.embedding(input_ids)
        offset += self.offset
        x = x[:, offset : offset + 4] if chosen is None else x[:, chosen[0]]
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        return self.head((x + ((q @ k.mT).softmax(-1) @ v)[:, 0]).mean(1))


@pytest.mark.parametrize("spelling", ["argument", "list", "attribute"])
def test_what_else_than_tensors_decides(spelling):
    model, ids = Cut().eval(), torch.tensor([[3, 1, 4, 2, 5, 7]])
    explainer = Explainer(model)
    for offset in (0, 2):
        inputs = {"input_ids": ids}
        if spelling == "argument":
            inputs["offset"] = offset
        elif spelling == "list":
            inputs["chosen"] = [torch.arange(offset, offset + 4)]
        else:
            model.offset = offset
        scores = explainer.explain(inputs, target=0, method="rollout").scores
        assert scores[0].nonzero()[:, 0].tolist() == list(range(offset, offset + 4))


@pytest.mark.parametrize(("more", "kept"), [({"offset": 1}, 1), ({"unread": [torch.ones(2)]}, 0)])
def test_tensors_in_lists_are_not_compared(more, kept):
    explainer = Explainer(Cut().eval())
    inputs = {"input_ids": torch.tensor([[3, 1, 4, 2, 5, 7]]), **more}
    explainer.explain(inputs, target=0, method="rollout")
    assert len(explainer._subject.layouts) == kept
