"""Is the right token first? Trained toys whose answer is known to come from one token.

    python benchmarks/read_token.py > docs/results/read_token.md

Two small Transformers are trained in seconds on random words: an encoder that tags each word, and a
decoder that gives the next word. Each has two heads on the same hidden states, so that attention is
really used: one answer is a function of the word that is read, the other of the word before it.
Each method then scores the words of held-out texts, and a hit is a text where the right word has
the highest score. All is seeded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

from whence import Explainer, WhenceError, methods

WORDS, TAGS, LENGTH, WIDTH = 24, 6, 10, 32
STEPS, BATCH, SAMPLES = 400, 64, 200
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 16,
}


class Toy(nn.Module):
    """A Transformer that answers two questions at each word: of this one, and of the one before.

    Attributes:
        answers: For each question, the answer of each word of the vocabulary.
    """

    def __init__(self, body: nn.Module, answers: dict[str, Tensor]) -> None:
        super().__init__()
        self.body = body
        self.heads = nn.ModuleDict(
            {name: nn.Linear(WIDTH, int(one.max()) + 1) for name, one in answers.items()}
        )
        self.answers = answers

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        """The logits of each question at each word."""
        hidden = self.body(input_ids=input_ids).last_hidden_state
        return {name: head(hidden) for name, head in self.heads.items()}


def build_tagger(seed: int = 0) -> Toy:
    """Build an encoder; each word has one of a few tags."""
    torch.manual_seed(seed)
    tags = torch.arange(WORDS)[torch.randperm(WORDS)] % TAGS
    body = BertModel(
        BertConfig(
            **SIZES,
            pad_token_id=None,  # else the first word has no embedding
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        add_pooling_layer=False,
    )
    return Toy(body, {"own": tags, "before": torch.arange(WORDS)})


def build_next_word(seed: int = 0) -> Toy:
    """Build a decoder; each word is followed by one other."""
    torch.manual_seed(seed)
    after = torch.randperm(WORDS)
    body = LlamaModel(LlamaConfig(**SIZES, num_key_value_heads=2, use_cache=False))
    return Toy(body, {"own": after, "before": torch.arange(WORDS)})


TOYS = {"tagger": build_tagger, "next word": build_next_word}


def make_texts(count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, WORDS, (count, LENGTH), generator=generator)


def find_answers(toy: Toy, question: str, ids: Tensor) -> Tensor:
    """The answers at all words but the first, which has none before it."""
    asked = ids[:, 1:] if question == "own" else ids[:, :-1]
    return toy.answers[question][asked]


def train(toy: Toy) -> Toy:
    """Train on both questions at once."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(toy.parameters(), lr=5e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, STEPS)
    for _ in range(STEPS):
        ids = make_texts(BATCH, generator)
        logits = toy(ids)
        losses = [
            F.cross_entropy(
                logits[name][:, 1:].flatten(0, 1), find_answers(toy, name, ids).flatten()
            )
            for name in toy.answers
        ]
        optimizer.zero_grad()
        sum(losses).backward()
        optimizer.step()
        schedule.step()
    return toy.eval()


def make_held_out(count: int = SAMPLES) -> tuple[Tensor, Tensor]:
    """Texts that were not trained on, and the word of each that is read."""
    generator = torch.Generator().manual_seed(2)
    ids = make_texts(count, generator)
    return ids, torch.randint(1, LENGTH, (count,), generator=generator)


def measure_accuracy(toy: Toy, question: str) -> float:
    ids, _ = make_held_out()
    with torch.no_grad():
        found = toy(ids)[question][:, 1:].argmax(-1)
    return float((found == find_answers(toy, question, ids)).double().mean())


def measure_hits(
    toy: Toy, question: str, method: str, count: int = SAMPLES, **options: Any
) -> float:
    """Measure in which share of held-out texts the word that decides has the highest score."""
    ids, read = make_held_out(count)
    if isinstance(toy.body, LlamaModel):
        read = torch.full_like(read, LENGTH - 1)
    hits = 0
    for position in sorted(set(read.tolist())):
        texts = ids[read == position]
        explainer = Explainer(toy, output=_read_answer(question, position))
        scores = explainer.explain({"input_ids": texts}, method=method, **options).scores
        right = position if question == "own" else position - 1
        others = scores.clone()
        others[:, right] = -torch.inf
        hits += int((scores[:, right] > others.amax(1)).sum())
    return hits / len(ids)


def _read_answer(question: str, position: int) -> Callable[[dict[str, Tensor]], Tensor]:
    return lambda returned: returned[question][:, position]


def write_table(names: Sequence[str], rows: dict[str, list[str]]) -> str:
    """Write a table in Markdown: a row for each method, a column for each toy and question."""
    lines = [f"| method | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    return "\n".join([*lines, *(f"| `{name}` | {' | '.join(row)} |" for name, row in rows.items())])


def main() -> None:
    toys = {name: train(build()) for name, build in TOYS.items()}
    columns = [(name, question) for question in ("own", "before") for name in toys]
    rows: dict[str, list[str]] = {}
    for method in methods.available():
        rows[method] = []
        for name, question in columns:
            try:
                hits = f"{100 * measure_hits(toys[name], question, method):.1f}"
            except WhenceError as error:
                hits = f"refused: {error}"
            rows[method].append(hits)
    accuracy = [f"{100 * measure_accuracy(toys[name], question):.1f}" for name, question in columns]
    print(write_table([f"{name}, {question}" for name, question in columns], rows))
    print(f"\nAccuracy: {', '.join(accuracy)}.")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
