"""Train the embedded language model, `stories`: it continues short stories for children.

    python training/stories.py sample --teacher $WHENCE_DATA/stories15M --data DATA
    python training/stories.py train --data DATA --out src/whence/demo/stories
    python training/stories.py evaluate --data DATA --teacher ... --model src/whence/demo/stories

A small Llama learns from stories that a larger one tells (`sample`: drawn token by token, those
that end within its 256 tokens are kept). In a third of them the characters get other names, so
that a name can only be known from earlier in the story; one text of five is of `recall.py`: who
has, did or likes what. `train` makes a tokenizer of 4,096 byte-level pieces and trains for a given
time, at a rate that falls to zero as time runs out. `evaluate` compares with the teacher on stories
that were not trained on, and asks questions about facts that were never written for training.
Seeded; about ten minutes on a GPU.
"""

import argparse
import itertools
import json
import math
import random
import re
import time
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import recall
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

SPECIAL = ["<pad>", "<s>", "</s>"]
CONTEXT = 512
PROCESSES = 16


# Stories of the teacher --------------------------------------------------------------------------


class Sampler:
    """Draws many stories at once from a Llama, with keys and values in tensors of fixed size."""

    def __init__(self, teacher: nn.Module, batch: int, length: int) -> None:
        config, parameter = teacher.config, next(teacher.parameters())
        self.teacher, self.batch, self.length = teacher, batch, length
        self.shape = (batch, config.num_attention_heads, length, config.head_dim)
        self.layers = [
            (layer, parameter.new_zeros(self.shape), parameter.new_zeros(self.shape))
            for layer in teacher.model.layers
        ]
        self.places = torch.arange(length, device=parameter.device)
        self.ends = [config.bos_token_id, config.eos_token_id]  # it ends by starting the next one
        self.step = torch.compile(self.draw_token) if parameter.is_cuda else self.draw_token

    def draw_token(self, tokens: Tensor, place: Tensor, temperature: Tensor) -> Tensor:
        """Draw the next token, leaving out those far less likely than the best."""
        body = self.teacher.model
        x = body.embed_tokens(tokens)[:, None]
        cos, sin = body.rotary_emb(x, place[None])
        for layer, keys, values in self.layers:
            attention, h = layer.self_attn, layer.input_layernorm(x)
            query, key, value = (
                project(h).view(self.batch, self.shape[1], 1, self.shape[3])
                for project in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            keys.index_copy_(2, place, rotate(key, cos, sin))
            values.index_copy_(2, place, value)
            scores = (rotate(query, cos, sin) * keys).sum(-1).float() / self.shape[3] ** 0.5
            weights = scores.masked_fill(self.places > place, -math.inf).softmax(-1)
            mixed = (weights[..., None] * values).sum(2).to(x.dtype)
            x = x + attention.o_proj(mixed.flatten(1))[:, None]
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        logits = self.teacher.lm_head(body.norm(x))[:, 0].float() / temperature
        unlikely = logits < logits.amax(1, keepdim=True) + math.log(0.02)
        noise = -torch.log(-torch.log(torch.rand_like(logits)))
        return (logits + noise).masked_fill(unlikely, -math.inf).argmax(1)

    @torch.no_grad()
    def draw(self, temperature: float) -> list[list[int]]:
        """Draw a batch, of which the stories that came to an end are returned."""
        drawn = [torch.full((self.batch,), self.ends[0], device=self.places.device)]
        heat = torch.tensor(temperature, device=self.places.device)
        for place in self.places.split(1)[:-1]:
            drawn.append(self.step(drawn[-1], place.clone(), heat))
        rows = torch.stack(drawn[1:], 1).tolist()
        lengths = [next((n for n, t in enumerate(row) if t in self.ends), 0) for row in rows]
        return [row[:n] for row, n in zip(rows, lengths, strict=True) if n]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate queries or keys (batch, heads, 1, size) to their position."""
    first, second = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]


def sample(options: argparse.Namespace) -> None:
    """Draw stories for some minutes and write them, one a line, as JSON strings."""
    tokenizer = Tokenizer.from_file(str(options.teacher / "tokenizer.json"))
    kind = torch.bfloat16 if options.device == "cuda" else torch.float32
    teacher = AutoModelForCausalLM.from_pretrained(options.teacher, dtype=kind)
    teacher.to(options.device).eval()
    options.data.mkdir(parents=True, exist_ok=True)
    sampler = Sampler(teacher, options.batch, options.length)
    start, stories = time.monotonic(), {}
    for temperature in itertools.cycle([0.8, 1.0]):
        ids = sampler.draw(temperature)
        stories |= dict.fromkeys(text.strip() for text in tokenizer.decode_batch(ids))
        if time.monotonic() - start > 60 * options.minutes:
            break
    print(f"{len(stories)} stories in {time.monotonic() - start:.0f} s", flush=True)
    lines = [json.dumps(story) for story in stories if len(story) > 100]
    (options.data / "held_out.jsonl").write_text("\n".join(lines[: options.held_out]))
    (options.data / "train.jsonl").write_text("\n".join(lines[options.held_out :]))


def read_stories(path: Path) -> list[str]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# Texts, tokenizer and model ----------------------------------------------------------------------


def cut_excerpts(chance: random.Random, stories: list[str]) -> list[str]:
    """Cut some sentences out of each story."""
    sentences = [re.findall(r"[A-Z][^.!?\"\n]+\.(?= |\n|$)", story) for story in stories]
    return [" ".join(some[: chance.randint(2, 6)]) for some in sentences]


def write_texts(task: tuple[int, list[str]]) -> list[str]:
    """Write the texts of one process: stories, some with other names, and texts of recall."""
    seed, stories = task
    chance = random.Random(seed)
    excerpts = cut_excerpts(chance, stories[:2000])
    told = [recall.rename_characters(chance, s) if chance.random() < 0.33 else s for s in stories]
    others = [recall.write_document(chance, excerpts) for _ in range(len(stories) // 4)]
    texts = told + others
    chance.shuffle(texts)
    return texts


def build_tokenizer(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_max_length=CONTEXT,
        add_prefix_space=True,
        padding_side="left",
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_input_names=["input_ids", "attention_mask"],
    )


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> tuple[Tensor, Tensor]:
    """Encode texts as one long row of ids; returns it and where each text starts."""
    rows = []
    for n in range(0, len(texts), 20_000):
        encodings = tokenizer.backend_tokenizer.encode_batch_fast(texts[n : n + 20_000])
        rows += [np.array([*e.ids, 2], dtype=np.int16) for e in encodings]
    starts = np.cumsum([0, *(len(row) for row in rows)])[:-1]
    return torch.from_numpy(np.concatenate(rows)), torch.from_numpy(starts)


def build_model(size: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


def fit(
    model: nn.Module, ids: Tensor, starts: Tensor, minutes: float, batch: int, rate: float
) -> int:
    """Train on rows that begin where a text does, until the time is over; returns the steps."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=ids.is_cuda)
    starts = starts[starts < len(ids) - CONTEXT - 1]
    places = torch.arange(CONTEXT + 1, device=ids.device)

    def compute_loss(rows: Tensor) -> Tensor:
        with torch.autocast(rows.device.type, torch.bfloat16, enabled=rows.is_cuda):
            logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())

    compiled = torch.compile(compute_loss) if ids.is_cuda else compute_loss
    begin, step, total, progress = 0.0, 0, 0.0, 0.0
    while progress < 1:
        chosen = starts[torch.randint(len(starts), (batch,), device=ids.device)]
        for group in optimizer.param_groups:
            group["lr"] = rate * min((step + 1) / 300, 0.5 + 0.5 * math.cos(math.pi * progress))
        loss = compiled(ids[chosen[:, None] + places].long())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step, total = step + 1, total + loss.detach()
        if step == 1:  # which compiled the model
            loss.item()
            begin = time.monotonic()
        if step % 10 == 0:
            loss.item()
            progress = (time.monotonic() - begin) / (60 * minutes)
        if step % 250 == 0:
            print(f"step {step}, {progress:.2f}: loss {float(total) / 250:.4f}", flush=True)
            total = 0.0
    return step


def train(options: argparse.Namespace) -> None:
    """Train the tokenizer and the model, and save them."""
    stories = read_stories(options.data / "train.jsonl")
    with Pool(PROCESSES) as pool:
        tasks = [(options.seed + n, stories[n::PROCESSES]) for n in range(PROCESSES)]
        texts = list(itertools.chain.from_iterable(pool.map(write_texts, tasks)))
    random.Random(options.seed).shuffle(texts)
    print(f"{len(texts)} texts, {sum(map(len, texts))} characters", flush=True)
    tokenizer = build_tokenizer(texts[:60_000], options.vocabulary)
    ids, starts = encode(tokenizer, texts)
    print(f"{len(ids)} tokens", flush=True)
    model = build_model(len(tokenizer)).to(options.device)
    torch.set_float32_matmul_precision("high")
    ids, starts = ids.to(options.device), starts.to(options.device)
    steps = fit(model, ids, starts, options.minutes, options.batch, options.rate)
    model.generation_config = GenerationConfig(
        max_new_tokens=60, pad_token_id=0, bos_token_id=1, eos_token_id=2
    )
    model.half().cpu().save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    facts = {
        "stories": len(stories),
        "texts": len(texts),
        "tokens": len(ids),
        "steps": steps,
        "tokens of a step": options.batch * CONTEXT,
        "seed": options.seed,
    }
    (options.out / "training.json").write_text(json.dumps(facts, indent=1))


# Evaluation --------------------------------------------------------------------------------------


@torch.inference_mode()
def compute_log_probabilities(model: nn.Module, tokenizer, texts: list[str], device: str):
    """Yield for each text its ids, where they stand, their log-probabilities, and the choices."""
    for n in range(0, len(texts), 50):
        batch = tokenizer(
            texts[n : n + 50], return_tensors="pt", padding=True, return_offsets_mapping=True,
            padding_side="right",
        ).to(device)  # fmt: skip
        ids, mask = batch["input_ids"], batch["attention_mask"].bool()
        logits = model(input_ids=ids, attention_mask=batch["attention_mask"]).logits[:, :-1].float()
        logs = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
        for row in range(len(ids)):
            keep = mask[row, 1:]
            yield (
                ids[row, 1:][keep].tolist(),
                batch["offset_mapping"][row, 1:][keep].tolist(),
                logs[row][keep].tolist(),
                logits[row].argmax(-1)[keep].tolist(),
            )


def measure_stories(model: nn.Module, tokenizer, stories: list[str], device: str) -> dict:
    """Measure bits a character, and how often a name met before is the choice where it returns."""
    names = re.compile(rf"\b({'|'.join(recall.GIRLS + recall.BOYS)})\b")
    bits, right, count = 0.0, 0, 0
    rows = compute_log_probabilities(model, tokenizer, stories, device)
    for story, (ids, offsets, logs, choices) in zip(stories, rows, strict=True):
        bits -= sum(logs) / math.log(2)
        met = set()
        for found in names.finditer(story):
            first = next(n for n, (_, end) in enumerate(offsets) if end > found.start())
            if found[0] in met:
                right, count = right + (ids[first] == choices[first]), count + 1
            met.add(found[0])
    characters = sum(map(len, stories))
    return {"bits a character": bits / characters, "names recalled": right / count}


def measure_recall(model: nn.Module, tokenizer, questions: list, device: str) -> float:
    """Measure how often all tokens of the answer are the model's choice."""
    prompts = [question.write_prompt((" ", "\n")[n % 2]) for n, question in enumerate(questions)]
    texts = [p + question.answer for p, question in zip(prompts, questions, strict=True)]
    right = 0
    rows = compute_log_probabilities(model, tokenizer, texts, device)
    for prompt, (ids, offsets, _, choices) in zip(prompts, rows, strict=True):
        first = next(n for n, (_, end) in enumerate(offsets) if end > len(prompt))
        right += ids[first:] == choices[first:]
    return right / len(questions)


def evaluate(options: argparse.Namespace) -> None:
    """Print figures on stories and questions that were held out, and some stories."""
    stories = read_stories(options.data / "held_out.jsonl")[: options.held_out]
    figures: dict = {"student": {}, "teacher": {}}
    for name, folder in [("student", options.model), ("teacher", options.teacher)]:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model.to(options.device).eval()
        figures[name] = measure_stories(model, tokenizer, stories, options.device)
        for count, new in itertools.product((2, 3, 4, 5), (False, True)):
            chance = random.Random(1000 + count)
            excerpts = cut_excerpts(chance, stories)
            drawn = [
                recall.draw_question(chance, count, excerpts, new=new)
                for _ in range(options.questions)
            ]
            for who in (False, True):
                questions = [question for question in drawn if question.asks_who() == who]
                figures[name][
                    f"{'who' if who else 'what'}, {count} characters{', new names' * new}"
                ] = measure_recall(model, tokenizer, questions, options.device)
        if name == "student":
            ids = tokenizer(["Once upon a time"] * 10, return_tensors="pt").to(options.device)
            told = model.generate(**ids, max_new_tokens=300, do_sample=True, temperature=0.8)
            for text in tokenizer.batch_decode(told, skip_special_tokens=True):
                print("-", text.strip(), flush=True)
    print(json.dumps(figures, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=["sample", "train", "evaluate"])
    parser.add_argument("--data", type=Path, required=True, help="folder of the stories")
    parser.add_argument("--teacher", type=Path, help="folder of stories15M")
    parser.add_argument("--model", type=Path, help="folder of the trained model")
    parser.add_argument("--out", type=Path, help="where to save the model")
    parser.add_argument("--minutes", type=float, default=4.0, help="of sampling, or of training")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--length", type=int, default=256, help="tokens of a story at most")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--held-out", type=int, default=1000, help="stories kept for evaluation")
    parser.add_argument("--questions", type=int, default=500, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    {"sample": sample, "train": train, "evaluate": evaluate}[options.step](options)


if __name__ == "__main__":
    main()
