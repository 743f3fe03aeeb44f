import pytest
import torch

from tests.benchmark.helpers import choose_one, judge
from tests.benchmark.protocols.test_context import explain_plainly
from whence import benchmark
from whence.benchmark import build_protocol
from whence.benchmark.prompts import prepare_prompt
from whence.datasets import Sample
from whence.errors import WhenceError


def test_recall_against_plain_loops(stories):
    protocol = build_protocol("passages", {})
    dataset = protocol.make_dataset(0, 5)
    samples = [dataset.read(name) for name in dataset.list_names()]
    rows = judge(protocol, stories, samples, choose_one("input_x_gradient"))
    counted = 0
    for sample, row in zip(samples, rows, strict=True):
        prepared = prepare_prompt(stories, sample)
        with torch.no_grad():
            logits = stories.model(torch.tensor([prepared.ids])).logits[0, -1].double()
        chance = float(logits.softmax(-1)[prepared.answer[0]])
        assert row["probability"] == pytest.approx(chance, abs=1e-3)
        assert row["answered"] == (chance >= 0.5)
        if chance < 0.5:
            assert "by_sum" not in row
            continue
        counted += 1
        scores = explain_plainly(stories, prepared, whole=False)
        sums, means = [], []
        for start, end in sample.passages:
            of = [
                score
                for score, (a, b) in zip(scores, prepared.offsets, strict=True)
                if b > a and sample.content[a:b].strip() and b > start and b <= end
            ]
            sums.append(sum(of))
            means.append(sum(of) / len(of))
        right = sample.passages.index(sample.cues[0])
        assert row["by_sum"] == (sums[right] == max(sums))
        assert row["by_mean"] == (means[right] == max(means))
        assert row["reciprocal_rank"] == pytest.approx(1 / sum(one >= sums[right] for one in sums))
    assert counted


def test_a_run_needs_neither_data_nor_model(quick, tmp_path):
    result = benchmark.run("passages", methods="gradient", limit=6, out=tmp_path / "run")
    assert "of 6 prompts" in result.table.notes[0]
    assert result.table.title.startswith("Passages: planted, stories")


def test_longer_contexts(stories):
    dataset = build_protocol("passages", {"passages": 3, "sentences": 9}).make_dataset(0, 1)
    assert len(prepare_prompt(stories, dataset.read("prompt-0")).ids) > 150


@pytest.mark.parametrize("options", [{"passages": 1}, {"passages": "10"}, {"sentences": -1}])
def test_impossible_options_are_refused(options):
    with pytest.raises(WhenceError, match=f"'{next(iter(options))}' is a number from"):
        build_protocol("passages", options)


def test_data_without_passages_are_refused(stories):
    with pytest.raises(WhenceError, match="leave --data out"):
        build_protocol("passages", {}).check(stories, "text", Sample("a", "Tom has a cat."))
