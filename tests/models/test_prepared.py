import pytest
import torch

from tests.saved import make_photo
from whence.models import load
from whence.models.prepared import join_batches

TEXTS = ["a wonderful film , and very good", "awful", "the films"]
FIELDS = ("ids", "tokens", "word_ids", "offsets", "type_ids", "attention_mask", "sequence_ids")


@pytest.mark.parametrize("side", ["right", "left"])
def test_joined_texts_are_as_tokenised_together(text_model, side):
    loaded = load(text_model)
    loaded.tokenizer.padding_side = side
    joined = join_batches([loaded.prepare([text]) for text in TEXTS], loaded.tokenizer)
    together = loaded.tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert list(joined.inputs) == list(together)
    for name in together:
        assert torch.equal(joined.inputs[name], together[name])
    for one, other in zip(joined.inputs.encodings, together.encodings, strict=True):
        for field in FIELDS:
            assert getattr(one, field) == getattr(other, field)
    assert joined.contents == TEXTS


def test_parts_of_a_joined_batch_stay_as_they_were(text_model):
    loaded = load(text_model)
    parts = [loaded.prepare([text]) for text in TEXTS]
    lengths = [len(part.inputs.encodings[0].ids) for part in parts]
    join_batches(parts, loaded.tokenizer)
    assert [len(part.inputs.encodings[0].ids) for part in parts] == lengths


def test_joined_photos(image_model):
    loaded = load(image_model)
    images = [make_photo(), make_photo(30, 50, seed=1)]
    joined = join_batches([loaded.prepare([image]) for image in images])
    together = loaded.prepare(images)
    assert torch.equal(joined.inputs, together.inputs)
    assert joined.notes == together.notes
    assert [one.size for one in joined.contents] == [one.size for one in together.contents]
