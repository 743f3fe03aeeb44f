"""Run a model on texts from whose embeddings numbers are dropped at random."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from whence._util.chunks import run_in_chunks
from whence._util.random import SeededRandom
from whence.errors import WhenceError
from whence.models import LoadedModel
from whence.models.forward import choose_chunk_size, compute_logits


class SoftRunner:
    """Drops numbers of the embeddings of words, and runs a model on the rest.

    The numbers that are drawn depend on a text's own seed alone: not on the method, on other texts
    of the batch, or on padding.

    Args:
        loaded: The model; it has to take embeddings.
        inputs: Tokenised texts, as the model takes them.
        words: (texts, tokens), which word each token belongs to; negative for tokens of none, whose
            embeddings stay.
        seeds: One for each text.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        inputs: Mapping[str, Tensor],
        words: Tensor,
        seeds: Sequence[int],
    ) -> None:
        check_takes_embeddings(loaded)
        self.loaded, self.seeds = loaded, seeds
        self.words = words.to(loaded.device)
        with torch.no_grad():
            self.embedded: Tensor = loaded.model.get_input_embeddings()(inputs["input_ids"])  # type: ignore[operator]
        self.others = {name: value for name, value in inputs.items() if name != "input_ids"}

    def run(self, chances: Tensor, draws: int) -> Tensor:
        """Logits (texts, draws, classes) where numbers of words (texts, units) stay by chance."""
        chances = chances.to(self.words.device)
        of_tokens = chances.gather(1, self.words.clamp(min=0))
        kept = torch.cat([self._draw(at, of_tokens[at], draws) for at in range(len(self.seeds))])
        texts = torch.arange(len(self.seeds), device=kept.device).repeat_interleave(draws)

        def work(chunk: range) -> Tensor:
            rows = texts[chunk.start : chunk.stop]
            changed = self.embedded[rows] * kept[chunk.start : chunk.stop]
            others = {name: value[rows] for name, value in self.others.items()}
            return compute_logits(self.loaded, {"inputs_embeds": changed, **others})

        logits = run_in_chunks(len(texts), choose_chunk_size(self.loaded), work)
        return logits.reshape(len(self.seeds), draws, -1)

    def _draw(self, text: int, chances: Tensor, draws: int) -> Tensor:
        """Which numbers (draws, tokens, width) of a text's embeddings stay."""
        width = self.embedded.shape[2]
        is_word = self.words[text] >= 0
        drawn = SeededRandom(self.seeds[text]).draw_uniform(draws, int(is_word.sum()), width)
        kept = torch.ones(draws, len(is_word), width, dtype=torch.bool, device=chances.device)
        kept[:, is_word] = drawn.to(chances.device) < chances[is_word][:, None]
        return kept


def check_takes_embeddings(loaded: LoadedModel) -> None:
    """Refuse a model that takes token ids only."""
    if "inputs_embeds" not in inspect.signature(loaded.model.forward).parameters:
        raise WhenceError(
            f"The model '{loaded.title}' takes no embeddings, numbers of which could be dropped; "
            f"leave out soft."
        )
