"""Trained toys of video and sound: does the map of the default method follow what decides?"""

import pytest
import torch
from benchmarks.media import draw_held_out, find_hits, find_right, measure_hits, train


def check_follows(name: str, model, least: float = 0.95, clips: int = 60) -> None:
    drawn = draw_held_out(name, clips)
    assert find_right(model, name, drawn).double().mean() >= 0.9
    assert measure_hits(model, name, drawn, "whence") >= least
    assert measure_hits(model, name, drawn, "random") < 0.5


def test_the_map_follows_the_square_that_moves():
    check_follows("VideoMAE", train("VideoMAE", steps=100, batch=16), clips=30)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"), [("ViViT", 0.95), ("VideoMAE", 0.95), ("AST", 0.85), ("Wav2Vec2", 0.95)]
)
def test_the_map_lies_on_what_decides(name, least):
    """Of spectrograms less often than of others (docs/results/media.md)."""
    check_follows(name, train(name), least)


@pytest.mark.slow
def test_the_map_follows_the_square_through_divided_attention():
    check_follows("TimeSformer", train("TimeSformer", steps=150, batch=16), clips=40)


@pytest.mark.slow
def test_much_sharing_gives_the_evidence_of_a_tone_to_the_noise():
    """Why signals share a quarter in `shared_evidence` (docs/results/media.md)."""
    model, drawn = train("Wav2Vec2"), draw_held_out("Wav2Vec2", 60)
    little, much = (
        measure_hits(model, "Wav2Vec2", drawn, "shared_evidence", sharing=s) for s in (0.25, 2.0)
    )
    assert little >= much


def test_a_hit_touches_what_decides():
    """By hand: two frames of two by two patches; the square lies in one patch of each."""
    decides = torch.zeros(1, 2, 4, 4, dtype=torch.bool)
    decides[0, 0, 0, 0] = decides[0, 1, 3, 3] = True
    scores = torch.tensor([[3.0, 1, 1, 1, 0, 5, 0, 4]])
    assert find_hits(scores, (2, 2, 2), decides).tolist() == [[True, False]]
    line = torch.zeros(1, 9, dtype=torch.bool)
    line[0, 8] = True
    assert find_hits(torch.tensor([[0.0, 1, 2]]), (3,), line).tolist() == [True]
