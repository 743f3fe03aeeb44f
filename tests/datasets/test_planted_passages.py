import pytest

from whence.datasets.generated import make_text_dataset
from whence.datasets.planted_passages import make_planted_passages
from whence.errors import WhenceError


@pytest.mark.parametrize("sentences", [0, 1, 4])
def test_one_passage_holds_the_answer(sentences):
    for one in make_planted_passages(seed=5, count=20, passages=4, sentences=sentences):
        texts = [one.content[start:end] for start, end in one.passages]
        holding = [text for text in texts if one.answer in text.partition(".")[0].split()]
        assert holding == [one.content[slice(*one.cues[0])]]
        assert [text.count("They") for text in texts] == [sentences] * 4
        owner, color = one.content.split()[-6], one.content.split()[-1]
        assert holding[0].startswith(f"{owner} had a {color} {one.answer}.")
        facts = [text.split()[index] for text in texts for index in (0, 3, 4)]
        assert len(set(facts)) == len(facts)


def test_prompts_depend_on_the_seed_alone():
    first, again, other = (make_planted_passages(seed, 6) for seed in (0, 0, 1))
    assert [one.content for one in first] == [one.content for one in again]
    assert [one.content for one in first] != [one.content for one in other]


def test_a_made_dataset_reads_and_has_a_fingerprint():
    dataset = make_text_dataset("planted", make_planted_passages(0, 3))
    sample = dataset.read("prompt-1")
    assert (sample.name, len(sample.passages), dataset.kind) == ("prompt-1", 5, "text")
    other = make_text_dataset("planted", make_planted_passages(1, 3))
    assert dataset.compute_fingerprint() != other.compute_fingerprint()


def test_impossible_prompts_are_refused():
    with pytest.raises(WhenceError, match="2 to 9 passages, not 10"):
        make_planted_passages(0, 1, passages=10)
    with pytest.raises(WhenceError, match="One prompt or more"):
        make_planted_passages(0, 0)
