import pytest

from whence.datasets.cue_sentences import CAPITALS, CUE_KINDS, make_cue_sentences
from whence.errors import WhenceError


def test_sentences_are_the_same_for_a_seed_and_different_from_each_other():
    first, again, other = (make_cue_sentences(seed, 100) for seed in (0, 0, 1))
    texts = [one.content for one in first]
    assert texts == [one.content for one in again]
    assert texts != [one.content for one in other]
    assert len(set(texts)) == len({one.name for one in first}) == 100
    assert {one.name.split("-")[0] for one in first} == set(CUE_KINDS)


def test_the_cue_is_what_the_answer_follows_from():
    for one in make_cue_sentences(3, 150):
        kind = one.name.split("-")[0]
        ((start, end),) = one.cues
        cue = one.content[start:end]
        assert cue
        assert cue == cue.strip()
        if kind == "capital":
            assert CAPITALS[cue] == one.answer
        elif kind == "giving":
            assert cue == one.answer
            assert one.content.count(cue) == 1  # the giver is named twice
        elif kind == "owning":
            assert cue == one.answer
            owner = one.content[:start].split()[-3]
            assert one.content.rpartition(". ")[2].startswith(f"{owner} ")
        elif kind == "agreement":
            assert (one.answer, one.rival) == (
                ("were", "was") if cue[-1] == "s" else ("was", "were")
            )
            assert one.content.endswith("s") != cue.endswith("s")  # the attractor's number
        else:
            assert one.content.endswith(f"{cue},")
            assert one.answer not in one.content


def test_a_kind_that_has_no_more_sentences_ends():
    made = make_cue_sentences(0, 1000, ["capital"])
    assert len(made) == 3 * len(CAPITALS)
    assert len({one.content for one in made}) == len(made)


@pytest.mark.parametrize(("count", "kinds"), [(0, CUE_KINDS), (3, ())])
def test_nothing_to_make_is_refused(count, kinds):
    with pytest.raises(WhenceError, match="one sentence or more"):
        make_cue_sentences(0, count, kinds)
