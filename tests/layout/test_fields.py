"""Fields of tokens, against boxes that are read off masks one by one."""

import pytest
import torch

from whence.layout import TokenFields


def read_boxes(masks: torch.Tensor) -> tuple[list, list, list]:
    """Starts, stops and counts of masks, (tokens, batch, ...), by listing their elements."""
    tokens, batch, *shape = masks.shape
    starts, stops, counts = ([[None] * tokens for _ in range(batch)] for _ in range(3))
    for token in range(tokens):
        for sample in range(batch):
            places = masks[token, sample].nonzero().tolist()
            counts[sample][token] = len(places)
            of_dims = list(zip(*places, strict=True)) or [(0,)] * len(shape)
            starts[sample][token] = [min(of) for of in of_dims]
            stops[sample][token] = [max(of) + 1 if places else 0 for of in of_dims]
    return starts, stops, counts


def assert_boxes(fields: TokenFields, masks: torch.Tensor) -> None:
    assert fields.shape == tuple(masks.shape[2:])
    assert (fields.starts.tolist(), fields.stops.tolist(), fields.counts.tolist()) == read_boxes(
        masks
    )


@pytest.mark.parametrize("shape", [(7,), (4, 5), (2, 3, 4)])
def test_fields_from_masks(shape):
    masks = (torch.rand(6, 3, *shape, generator=torch.Generator().manual_seed(0)) < 0.2).long()
    masks[2] = 0
    masks[3, 1] = 0
    fields = TokenFields.from_masks(masks)
    assert_boxes(fields, masks)
    assert not fields.by_value


@pytest.mark.parametrize("shape", [(7,), (4, 5), (2, 3, 4)])
def test_fields_from_owners(shape):
    owners = torch.randint(-1, 5, (3, *shape), generator=torch.Generator().manual_seed(0))
    owners[owners == 2] = -1
    fields = TokenFields.from_owners(owners, 5)
    assert_boxes(fields, torch.stack([(owners == token).long() for token in range(5)]))


def test_a_box_has_all_elements_between_its_ends():
    owners = torch.tensor([[[0, 0, 1], [0, 0, 1]]])
    assert TokenFields.from_owners(owners, 3).are_boxes
    owners[0, 0, 1] = 1  # both are corners of two arms now
    assert not TokenFields.from_owners(owners, 3).are_boxes
    assert not TokenFields.from_owners(torch.tensor([[0, 1, 0]]), 2).are_boxes  # one of them is


def test_moved_to_the_cpu_fields_stay_the_same():
    masks = torch.eye(3).long()[:, None]
    fields = TokenFields.from_masks(masks)
    assert_boxes(fields.cpu(), masks)


def test_dimensions_of_length_one_expand():
    masks = torch.zeros(3, 2, 1, 4, 1, dtype=torch.long)
    masks[0, :, 0, :2] = masks[1, 1, 0, 3] = 1
    small = TokenFields.from_masks(masks)
    assert_boxes(small.expand((3, 4, 5)), masks.expand(3, 2, 3, 4, 5))
    assert_boxes(small.expand((1, 4, 1)), masks)
    assert_boxes(small, masks)  # left as it was
    with pytest.raises(ValueError, match="zip"):
        small.expand((1, 4))


def test_fields_of_groups_add_and_those_of_chunks_follow_each_other():
    owners = torch.tensor([[0, 0, 1, 2, 3], [3, 2, -1, -1, 0]])
    masks = torch.stack([(owners == token).long() for token in range(4)])
    groups = [torch.where(owners % 2 == parity, owners, -1) for parity in (0, 1)]
    assert_boxes(TokenFields.add([TokenFields.from_owners(one, 4) for one in groups]), masks)
    whole = TokenFields.from_masks(masks)
    assert_boxes(TokenFields.add([whole]), masks)
    assert_boxes(TokenFields.concatenate([whole]), masks)
    chunks = [TokenFields.from_masks(masks[:1]), TokenFields.from_masks(masks[1:])]
    assert_boxes(TokenFields.concatenate(chunks), masks)
