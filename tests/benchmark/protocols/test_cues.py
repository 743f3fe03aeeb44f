import dataclasses

import pytest
import torch

from tests.benchmark.helpers import choose_one, judge
from tests.benchmark.protocols.test_context import explain_plainly
from tests.metrics.test_cues import compare_plainly
from whence import benchmark
from whence.benchmark import build_protocol
from whence.benchmark.prompts import prepare_prompt
from whence.datasets import Sample
from whence.errors import WhenceError


def test_cues_against_plain_loops(stories):
    protocol = build_protocol("cues", {})
    dataset = protocol.make_dataset(2, 10)
    samples = [dataset.read(name) for name in dataset.list_names()]
    rows = judge(protocol, stories, samples, choose_one("input_x_gradient"))
    counted = set()
    for sample, row in zip(samples, rows, strict=True):
        prepared, kind = prepare_prompt(stories, sample), sample.name.split("-")[0]
        with torch.no_grad():
            logits = stories.model(torch.tensor([prepared.ids])).logits[0, -1]
        answer = logits[prepared.answer[0]]
        wrong = prepared.rival
        answered = answer == logits.max() if wrong is None else answer > logits[wrong]
        assert row["answered"] == answered, sample
        if not answered:
            assert "first_none" not in row
            continue
        counted.add(kind)
        scores = explain_plainly(stories, prepared, whole=False)
        if wrong is not None:
            scores = explain_contrast_plainly(stories, prepared)
        ((start, end),) = sample.cues
        cues = [b > start and b <= end for a, b in prepared.offsets]
        assert sum(cues)
        for left_out, first, last in (("none", 0, 0), ("first", 1, 0), ("ends", 1, 1)):
            count = len(scores)
            allowed = [first <= at < count - last for at in range(count)]
            expected = compare_plainly(scores, cues, allowed)
            names = [f"{name}_{left_out}" for name in ("first", "reciprocal_rank", "share")]
            if expected is not None:
                assert [row[name] for name in names] == pytest.approx(expected, abs=1e-3)
        assert row[f"first_{kind}"] == row["first_none"]
    assert "owning" in counted
    assert len(counted) < 5  # what is not answered has no figures


def explain_contrast_plainly(loaded, prepared):
    """Scores of the right token less those of the wrong one; this method is linear."""
    wrong = dataclasses.replace(prepared, answer=(prepared.rival,))
    pair = [explain_plainly(loaded, one, whole=False) for one in (prepared, wrong)]
    return [right - rival for right, rival in zip(*pair, strict=True)]


def test_the_right_token_is_explained_against_the_wrong_one(stories):
    """In a batch with prompts of other lengths, and with some that name no wrong answer."""
    texts = {"The dogs near the tree": ("are", "is"), "Tom was sad. He": ("was", "")}
    texts["The cat"] = ("is", "are")
    samples = [
        Sample(text, text, answer=right, rival=wrong) for text, (right, wrong) in texts.items()
    ]
    prompts = [prepare_prompt(stories, sample) for sample in samples]
    assert [one.rival is None for one in prompts] == [False, True, False]
    method, answers = choose_one("input_x_gradient"), [one.answer[:1] for one in prompts]
    found = build_protocol("cues", {}).score_tokens(stories, prompts, answers, method)
    for prompt, row in zip(prompts, found, strict=True):
        alone = explain_plainly(stories, prompt, whole=False)
        contrast = None if prompt.rival is None else explain_contrast_plainly(stories, prompt)
        size = len(prompt.ids)
        assert row[:size].tolist() == pytest.approx(contrast or alone, rel=1e-3, abs=1e-4)
        assert not row[size:].any()
        assert contrast is None or contrast != pytest.approx(alone, rel=0.1)


def test_a_run_states_the_share_that_is_answered(quick, tmp_path):
    result = benchmark.run(
        "cues:sentences=owning+capital", methods="gradient,random", limit=6, out=tmp_path / "run"
    )
    note = result.table.notes[0]
    assert "of 6 sentences (owning" in note
    assert "capital 0 of 3" in note
    ranked = [metric.name for metric in result.table.metrics if metric.ranked]
    assert ranked == ["reciprocal rank", "reciprocal rank, no first token"]


def test_a_model_that_answers_nothing_gets_a_table_that_says_so(quick, tmp_path):
    result = benchmark.run(
        "cues:sentences=capital", methods="gradient", limit=3, out=tmp_path / "r"
    )
    assert result.table.cells == {}
    assert "0 of 3 sentences" in result.table.notes[0]


def test_what_cannot_be_judged_is_refused(stories):
    with pytest.raises(WhenceError, match="leave --data out"):
        build_protocol("cues", {}).check(stories, "text", Sample("a", "Tom has a cat."))
    with pytest.raises(WhenceError, match="'sentences' is 'capital' or"):
        build_protocol("cues", {"sentences": "rhymes"})


def test_a_method_that_refuses_the_model_is_told_though_most_are_not_answered(quick, tmp_path):
    asked = {"limit": 8, "batch": 4, "out": tmp_path / "run"}
    with pytest.raises(WhenceError, match="makes each operation linear"):
        benchmark.run("cues", methods="decompx", **asked)
    result = benchmark.run("cues", methods="gradient", **asked)
    assert result.table.cells
