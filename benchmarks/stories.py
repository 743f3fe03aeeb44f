"""Where does a name come from? A language model's own stories, by every method.

    python benchmarks/stories.py --stories 200 --out docs/results/stories

The model in `WHENCE_DATA`/stories15M writes stories. In each, one position is drawn where it names
a character that was met before, with a probability of at least one half; where the story has such
positions after two or more characters were met, among those. Each method explains that token.

- Drop: by how much the token's log-probability falls when the tenth of the tokens with the highest
  scores is removed. Removed tokens are replaced by the mean of all embeddings, or deleted, so that
  the text closes up. Three sets of tokens may be removed: all; all but the first, `<s>`, which is
  no part of the text; and of these, all but the last, from which the answer is read. Where that is
  deleted, the answer is read from the last one left.
- Hit: an earlier mention of the name, any token of it, is among the three highest scores.
- Ranks of the first and of the last token among all scores.

Methods that are far behind, or take many forward passes, get the first stories only. Intervals are
of 95 %, by bootstrap over stories. All is seeded.
"""

import argparse
import csv
import io
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from whence import Explainer, methods
from whence._util.files import write_atomically
from whence._util.progress import bar
from whence.metrics.statistics import ConfidenceInterval as Interval
from whence.metrics.statistics import bootstrap_mean

LENGTH, TEMPERATURE, AT_ONCE, LEAST = 256, 0.9, 40, 0.5
# The closest methods, as the first stories showed; they alone get all stories.
CLOSEST = (
    "whence",
    "attnlrp",
    "fullgrad_plus:gradients=balanced",
    "gae:gradients=balanced",
    "input_x_gradient:gradients=balanced",
    "partial_lrp",
    "tiba",
    "tiba:gradients=balanced",
)
SLOW = ("integrated_gradients", "occlusion", "smoothgrad", "value_zeroing")
SLOWEST = ("attention_flow", "rise", "search")
REMOVALS = ("replaced", "deleted")
REMOVABLE = ("all", "all but <s>", "all but <s> and last")
DROPS = [f"{how}, {which}" for how in REMOVALS for which in REMOVABLE]
OTHERS = ["hit", "rank of <s>", "rank of last"]
# Capital letters that name nobody.
NO_NAMES = frozenset("The A An It He She They We You His Her Their My Our Your This That".split())


class Case(NamedTuple):
    """A story up to a name.

    Attributes:
        ids: The tokens before the name.
        target: The name's first token.
        name: The name.
        met: How many characters were named before.
        mentions: The positions of all tokens of earlier mentions.
        probability: The model's, of the target.
    """

    ids: list[int]
    target: int
    name: str
    met: int
    mentions: set[int]
    probability: float


class NextToken(nn.Module):
    """The next token's logits alone: other positions' cost half of the time."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        """Compute logits (batch, vocabulary)."""
        logits: Tensor = self.model(input_ids, logits_to_keep=1, use_cache=False).logits[:, -1]
        return logits


class Writer:
    """A language model with its tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder).eval()

    def write_stories(self) -> Iterator[list[int]]:
        """Write stories without end, each from `<s>` to the next one or the longest context."""
        torch.manual_seed(0)
        start = torch.full((AT_ONCE, 1), self.tokenizer.bos_token_id)
        while True:
            texts = self.model.generate(
                start,
                attention_mask=torch.ones_like(start),
                do_sample=True,
                temperature=TEMPERATURE,
                top_k=0,
                max_length=LENGTH,
                pad_token_id=self.tokenizer.eos_token_id,
            )
            for ids in texts.tolist():
                ends = [at for at, token in enumerate(ids) if at and token in (ids[0], 2)]
                yield ids[: min(ends, default=len(ids))]

    def find_names(self, ids: list[int]) -> dict[str, list[range]]:
        """Find the names of characters, each with the tokens of its mentions.

        A name is a word with a capital letter that follows a word or a comma at least once, and is
        written small nowhere in the story.
        """
        pieces = self.tokenizer.convert_ids_to_tokens(ids)
        words: list[tuple[str, range]] = []
        for at, piece in enumerate(pieces):
            text, tokens = words[-1] if words else (",", range(0))
            if re.fullmatch("[A-Za-z]+", piece) and re.fullmatch("[A-Za-z]*", text):
                words[-1] = (text + piece, range(tokens.start, at + 1))
            else:
                words.append((piece.lstrip("▁"), range(at, at + 1)))
        small = {text for text, _ in words if text.islower()}
        names = {
            text
            for (before, _), (text, tokens) in pairwise(words)
            if re.fullmatch("[A-Z][a-z]+", text) and pieces[tokens.start].startswith("▁")
            if re.fullmatch("[A-Z]?[a-z]+|,", before)
            if text not in NO_NAMES and text.lower() not in small
        }
        return {name: [tokens for text, tokens in words if text == name] for name in names}

    @torch.no_grad()
    def find_cases(self, ids: list[int]) -> list[Case]:
        """Find all places of a story where the model names a character met before."""
        probabilities = self.model(torch.tensor([ids])).logits[0].softmax(-1)
        names, found = self.find_names(ids), []
        for name, mentions in names.items():
            for number, tokens in enumerate(mentions):
                at, target = tokens.start, ids[tokens.start]
                probability = float(probabilities[at - 1, target])
                if number and probability >= LEAST and target == ids[mentions[0].start]:
                    met = sum(other[0].start < at for other in names.values())
                    earlier = {token for mention in mentions[:number] for token in mention}
                    found.append(Case(ids[:at], target, name, met, earlier, probability))
        among_several = [case for case in found if case.met > 1]
        return sorted(among_several or found, key=lambda case: len(case.ids))

    def draw_cases(self, count: int) -> list[Case]:
        """Draw one case from each story that has one."""
        generator, drawn = torch.Generator().manual_seed(0), []
        for ids in self.write_stories():
            if found := self.find_cases(ids):
                at = torch.randint(len(found), (), generator=generator)
                drawn.append(found[int(at)])
            if len(drawn) == count:
                return drawn
        return drawn

    @torch.no_grad()
    def remove(self, case: Case, removed: Sequence[frozenset[int]], how: str) -> list[float]:
        """Compute the target's log-probability without each of some sets of equally many tokens."""
        ids = torch.tensor(case.ids)
        kept = torch.ones(len(removed), len(ids), dtype=torch.bool)
        for row, tokens in zip(kept, removed, strict=True):
            row[list(tokens)] = False
        if how == "deleted":
            texts = ids.expand(len(kept), -1)[kept].view(len(kept), -1)
            returned = self.model(texts, logits_to_keep=1)
        else:
            embeddings = self.model.get_input_embeddings().weight
            mixed = torch.where(kept[..., None], embeddings[ids], embeddings.mean(0))
            returned = self.model(inputs_embeds=mixed, logits_to_keep=1)
        found: list[float] = returned.logits[:, -1].log_softmax(-1)[:, case.target].tolist()
        return found


def select_highest(scores: Tensor, which: str) -> frozenset[int]:
    """Select the tenth of the tokens, rounded up, with the highest scores that may be removed."""
    order = scores.argsort(descending=True, stable=True).tolist()
    kept = {"all": (), "all but <s>": (0,)}.get(which, (0, len(order) - 1))
    return frozenset([token for token in order if token not in kept][: -(-len(order) // 10)])


def measure_case(writer: Writer, case: Case, scores: dict[str, Tensor]) -> dict[str, list[float]]:
    """Measure the figures of each method, in the order of `DROPS` and `OTHERS`."""
    figures: dict[str, list[float]] = {label: [] for label in scores}
    for how in REMOVALS:
        whole = writer.remove(case, [frozenset()], how)[0]
        for which in REMOVABLE:
            sets = {label: select_highest(values, which) for label, values in scores.items()}
            different = list(dict.fromkeys(sets.values()))
            found = dict(zip(different, writer.remove(case, different, how), strict=True))
            for label, removed in sets.items():
                figures[label].append(whole - found[removed])
    for label, values in scores.items():
        order = values.argsort(descending=True, stable=True).tolist()
        hit = bool(case.mentions & set(order[:3]))
        figures[label] += [hit, order.index(0) + 1, order.index(len(order) - 1) + 1]
    return figures


def list_methods(stories: int, some: int, few: int, fewest: int) -> dict[str, int]:
    """List all methods, each with the number of stories that it explains."""
    plain = methods.available("text")
    counts = dict.fromkeys([*plain, "attcat:gradients=balanced"], some)
    counts |= dict.fromkeys(SLOW, few) | dict.fromkeys(SLOWEST, fewest)
    counts |= dict.fromkeys(CLOSEST, stories)
    return {label: min(count, stories) for label, count in counts.items()}


def explain_tokens(explainer: Explainer, ids: list[int], target: int, label: str) -> Tensor:
    """Explain a next token by a method, such as ``gae`` or ``gae:gradients=balanced``."""
    name, _, gradients = label.partition(":gradients=")
    options: dict[str, Any] = {"gradients": gradients} if gradients else {}
    inputs = {"input_ids": torch.tensor([ids])}
    return explainer.explain(inputs, target=target, method=name, **options).scores[0].double()


def format_interval(found: Interval, digits: int = 2) -> str:
    return f"{found.estimate:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def print_tables(rows: dict[str, dict[int, list[float]]]) -> None:
    """Print means with intervals, and paired differences of the default and each other."""
    columns = [*DROPS, *OTHERS]
    tables = {label: torch.tensor([*found.values()]).double() for label, found in rows.items()}
    order = sorted(rows, key=lambda label: -float(tables[label][:, 0].mean()))
    print(f"\n| method | stories | {' | '.join(columns)} |")
    print(f"| --- |{' ---: |' * (len(columns) + 1)}")
    for label in order:
        table = tables[label]
        cells = [format_interval(bootstrap_mean(drops)) for drops in table.T[: len(DROPS)]]
        cells.append(f"{100 * table[:, len(DROPS)].mean():.1f}")
        cells += [f"{ranks.median():.0f}" for ranks in table.T[len(DROPS) + 1 :]]
        print(f"| `{label}` | {len(table)} | {' | '.join(cells)} |")
    print("\nThe default less each other, on the same stories:\n")
    print(f"| method | {' | '.join(DROPS)} |\n| --- |{' ---: |' * len(DROPS)}")
    order.remove("whence")
    for label in order:
        pairs = [(rows["whence"][number], figures) for number, figures in rows[label].items()]
        cells = [
            format_interval(bootstrap_mean([own[at] - other[at] for own, other in pairs]))
            for at in range(len(DROPS))
        ]
        print(f"| `{label}` | {' | '.join(cells)} |")


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stories", type=int, default=200)
    parser.add_argument("--some", type=int, default=60, help="stories for other methods")
    parser.add_argument("--few", type=int, default=10, help=f"stories for {', '.join(SLOW)}")
    parser.add_argument("--fewest", type=int, default=3, help=f"stories for {', '.join(SLOWEST)}")
    parser.add_argument("--out", type=Path, help="folder for all rows and stories")
    options = parser.parse_args()
    writer = Writer(Path(os.environ["WHENCE_DATA"]) / "stories15M")
    explainer = Explainer(NextToken(writer.model))
    counts = list_methods(options.stories, options.some, options.few, options.fewest)
    rows: dict[str, dict[int, list[float]]] = {}
    cases = writer.draw_cases(options.stories)
    with bar("Stories", len(cases)) as done:
        for number, case in enumerate(cases):
            labels = [label for label, count in counts.items() if number < count]
            scores = {
                label: explain_tokens(explainer, case.ids, case.target, label) for label in labels
            }
            for label, figures in measure_case(writer, case, scores).items():
                rows.setdefault(label, {})[number] = figures
            done(1)
    print_tables(rows)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        write_csv(
            options.out / "stories.csv",
            ["story", "name", "characters", "probability", "text"],
            [
                (number, c.name, c.met, f"{c.probability:.3f}", writer.tokenizer.decode(c.ids))
                for number, c in enumerate(cases)
            ],
        )
        write_csv(
            options.out / "rows.csv",
            ["story", "method", *DROPS, *OTHERS],
            [
                (number, label, *(f"{figure:.4g}" for figure in figures))
                for label, of_stories in rows.items()
                for number, figures in of_stories.items()
            ],
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
