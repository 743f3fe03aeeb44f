"""Is the right word first? Trained toys whose answer is known to come from one word.

    python benchmarks/read_token.py

Small Transformers are trained in seconds on random words: encoders that tag words, and decoders
that give the next word. Plain toys answer the first question alone. Others answer a second one from
the same hidden states at each word, so that attention is really used:

- own: what a function of this very word is, its tag or the word that follows it;
- most: whether more than half of the words are of the first kind (in a decoder: so far);
- before: which word stands before this one.

Each method then explains an answer at one word of held-out texts. A hit is a text where the word
that decides has the highest score. All is seeded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel

from whence import Explainer, WhenceError, methods

WORDS, TAGS, LENGTH, WIDTH = 24, 6, 10, 32
STEPS, BATCH, SAMPLES = 400, 64, 200
PROMISED = ("whence", "tiba", "gae", "rollout", "attnlrp", "input_x_gradient", "occlusion")


def _build_bert() -> nn.Module:
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=16,
        pad_token_id=None,  # else the first word has no embedding
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertModel(config, add_pooling_layer=False)


def _build_gpt2() -> nn.Module:
    config = GPT2Config(
        vocab_size=WORDS,
        n_embd=WIDTH,
        n_layer=2,
        n_head=4,
        n_inner=64,
        n_positions=16,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2Model(config)


def _build_llama() -> nn.Module:
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        use_cache=False,
    )
    return LlamaModel(config)


BODIES = {"tagger": _build_bert, "next word": _build_gpt2, "next word, Llama": _build_llama}


class Toy(nn.Module):
    """A Transformer that answers one question or two at each word.

    Attributes:
        is_decoder: Whether words see only those before them; the last word is then read.
        function: What the answer "own" is, for each word of the vocabulary.
    """

    def __init__(self, name: str, other: str | None) -> None:
        super().__init__()
        self.is_decoder = name != "tagger"
        self.function = torch.randperm(WORDS)
        if not self.is_decoder:
            self.function %= TAGS
        self.body = BODIES[name]()
        questions = ("own", other) if other else ("own",)
        self.heads = nn.ModuleDict({question: nn.Linear(WIDTH, WORDS) for question in questions})

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        """The logits of each question at each word."""
        hidden = self.body(input_ids=input_ids).last_hidden_state
        return {name: head(hidden) for name, head in self.heads.items()}

    def answer(self, question: str, ids: Tensor) -> Tensor:
        """The right answers at all words but the first, which has none before it."""
        if question == "own":
            return self.function[ids][:, 1:]
        if question == "before":
            return ids[:, :-1]
        votes = 2 * (ids < WORDS // 2).long() - 1
        counts = votes.cumsum(1) if self.is_decoder else votes.sum(1, keepdim=True).expand_as(ids)
        return (counts > 0).long()[:, 1:]


def train(name: str, other: str | None = None, seed: int = 0) -> Toy:
    """Train a toy, one of `BODIES`, on "own" alone or with another question at once."""
    torch.manual_seed(seed)
    toy = Toy(name, other)
    generator = torch.Generator().manual_seed(seed + 1)
    optimizer = torch.optim.AdamW(toy.parameters(), lr=5e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, STEPS)
    for _ in range(STEPS):
        ids = _make_texts(BATCH, generator)
        logits = toy(ids)
        losses = [
            F.cross_entropy(
                logits[question][:, 1:].mT, toy.answer(question, ids), label_smoothing=0.1
            )
            for question in toy.heads
        ]
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()
        schedule.step()
    return toy.eval()


def _make_texts(count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, WORDS, (count, LENGTH), generator=generator)


def make_held_out(toy: Toy) -> tuple[Tensor, Tensor]:
    """Texts that were not trained on, and the position of each that is read."""
    generator = torch.Generator().manual_seed(-1)
    ids = _make_texts(SAMPLES, generator)
    if toy.is_decoder:
        return ids, torch.full((SAMPLES,), LENGTH - 1)
    return ids, torch.randint(1, LENGTH, (SAMPLES,), generator=generator)


def measure_accuracy(toy: Toy, question: str) -> float:
    """Measure the share of right answers at all words of held-out texts."""
    ids, _ = make_held_out(toy)
    with torch.no_grad():
        found = toy(ids)[question][:, 1:].argmax(-1)
    return float((found == toy.answer(question, ids)).double().mean())


def measure_hits(toy: Toy, question: str, method: str, **options: Any) -> float:
    """Measure in which share of held-out texts the word that decides has the highest score."""
    ids, read = make_held_out(toy)
    hits = 0
    for position in sorted(set(read.tolist())):
        explainer = Explainer(toy, output=_select_answer(question, position))
        texts = {"input_ids": ids[read == position]}
        scores = explainer.explain(texts, method=method, **options).scores
        right = position if question == "own" else position - 1
        others = scores.clone()
        others[:, right] = -torch.inf
        hits += int((scores[:, right] > others.amax(1)).sum())
    return hits / len(ids)


def _select_answer(question: str, position: int) -> Callable[[dict[str, Tensor]], Tensor]:
    return lambda returned: returned[question][:, position]


def _format_hits(toys: list[Toy], question: str, method: str) -> str:
    try:
        shares = [100 * measure_hits(toy, question, method) for toy in toys]
    except WhenceError as error:
        return f"refused ({str(error).split('.')[0]})"
    mean = sum(shares) / len(shares)
    return f"{mean:.1f}" if min(shares) == max(shares) else f"{mean:.1f} ({min(shares):.1f})"


def main(seeds: int = 3) -> None:
    """Print tables in Markdown: hits in percent, the mean over seeds and the lowest if another."""
    rest = [name for name in methods.available("text") if name not in PROMISED]
    for other in (None, "most", "before"):
        toys = {name: [train(name, other, seed) for seed in range(seeds)] for name in BODIES}
        for question in toys["tagger"][0].heads:
            beside = other and question == "own"
            print(f"\n{question}, beside {other}\n" if beside else f"\n{question}\n")
            print(f"| method | {' | '.join(BODIES)} |\n| --- |{' ---: |' * len(BODIES)}")
            accuracy = (min(measure_accuracy(toy, question) for toy in toys[n]) for n in BODIES)
            print(f"| accuracy | {' | '.join(f'{100 * one:.1f}' for one in accuracy)} |")
            for method in (*PROMISED, *rest) if question != "most" else ():
                cells = [_format_hits(toys[name], question, method) for name in BODIES]
                print(f"| `{method}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
