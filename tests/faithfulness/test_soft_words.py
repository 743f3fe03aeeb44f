import dataclasses

import pytest
import torch
from torch import nn

from whence._util.random import SeededRandom
from whence.errors import WhenceError
from whence.faithfulness.soft_words import SoftRunner, check_takes_embeddings

TEXTS = ["the film was very good", "not bad"]


def test_numbers_of_words_stay_by_chance(bert):
    batch = bert.tokenizer(TEXTS, padding=True, return_tensors="pt")
    words = [[-1 if one is None else one for one in batch.word_ids(n)] for n in range(2)]
    runner = SoftRunner(bert, dict(batch), torch.tensor(words), [3, 4])
    chances = torch.tensor([[0.0, 0.3, 1, 0.5, 0.9], [0.2, 0.8, 0, 0, 0]])
    found = runner.run(chances, 3)
    table = bert.model.get_input_embeddings().weight
    for n, (text, seed) in enumerate(zip(TEXTS, (3, 4), strict=True)):
        encoded = bert.tokenizer(text, return_tensors="pt")
        places = [at for at, word in enumerate(encoded.word_ids(0)) if word is not None]
        drawn = SeededRandom(seed).draw_uniform(3, len(places), table.shape[1])
        for draw in range(3):
            embedded = table[encoded.input_ids[0]].detach().clone()
            for number, at in enumerate(places):
                kept = drawn[draw, number] < chances[n, encoded.word_ids(0)[at]]
                embedded[at] = embedded[at] * kept
            others = {k: v for k, v in encoded.items() if k != "input_ids"}
            with torch.no_grad():
                logits = bert.model(inputs_embeds=embedded[None], **others).logits[0]
            assert torch.allclose(found[n, draw], logits, atol=1e-5)


def test_everything_stays_at_a_chance_of_one(bert):
    batch = bert.tokenizer(TEXTS, padding=True, return_tensors="pt")
    words = [[-1 if one is None else one for one in batch.word_ids(n)] for n in range(2)]
    found = SoftRunner(bert, dict(batch), torch.tensor(words), [0, 1]).run(torch.ones(2, 5), 1)
    with torch.no_grad():
        assert torch.allclose(found[:, 0], bert.model(**batch).logits, atol=1e-5)


def test_a_model_without_embeddings_is_refused(bert):
    with pytest.raises(WhenceError, match="takes no embeddings"):
        check_takes_embeddings(dataclasses.replace(bert, model=nn.Linear(2, 2)))
