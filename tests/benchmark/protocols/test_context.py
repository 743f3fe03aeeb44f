import math

import pytest
import torch

from tests.benchmark.helpers import choose_one, judge
from tests.benchmark.test_prompts import PROMPTS, compute_plainly
from whence import Explainer, benchmark, targets
from whence.benchmark import build_protocol
from whence.benchmark.prompts import prepare_prompt
from whence.datasets import Sample
from whence.errors import WhenceError

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)


def explain_plainly(loaded, prepared, whole):
    """Scores of the prompt's tokens, of one prompt alone."""
    ids = [*prepared.ids, *prepared.answer] if whole else list(prepared.ids)
    target = targets.span(len(prepared.ids)) if whole else targets.token(-1, prepared.answer[0])
    explainer = Explainer(loaded.model, tokenizer=loaded.tokenizer)
    inputs = {"input_ids": torch.tensor([ids])}
    found = explainer.explain(inputs, target=target, method="input_x_gradient").scores[0]
    return found[: len(prepared.ids)].tolist()


@pytest.mark.parametrize(
    ("target", "stays"),
    [
        ("answer", "ends"),
        pytest.param("token", "first", marks=pytest.mark.slow),
        pytest.param("token", "none", marks=pytest.mark.slow),
    ],
)
def test_drops_against_plain_loops(stories, target, stays):
    protocol = build_protocol("context", {"target": target, "stays": stays})
    rows = judge(protocol, stories, PROMPTS, choose_one("input_x_gradient"))
    for sample, row in zip(PROMPTS, rows, strict=True):
        prepared = prepare_prompt(stories, sample)
        scores, count = explain_plainly(stories, prepared, target == "answer"), len(prepared.ids)
        answer = prepared.answer if target == "answer" else prepared.answer[:1]
        may = {"none": range(count), "first": range(1, count), "ends": range(1, count - 1)}[stays]
        order = sorted(may, key=lambda at: (-scores[at], at))
        for removal in ("mean", "delete"):
            full = compute_plainly(stories, list(prepared.ids), answer, (), removal)
            drops = []
            for share in SHARES:
                removed = order[: math.ceil(share * len(may) - 1e-9)]
                without = compute_plainly(stories, list(prepared.ids), answer, removed, removal)
                drops.append(full - without)
            assert row[f"drops_{removal}"] == pytest.approx(drops, abs=5e-3), (sample.name, removal)
            assert row[f"drop_{removal}"] == pytest.approx(sum(drops) / 5, abs=5e-3)
        assert row["log_probability"] == pytest.approx(full, abs=5e-3)


def test_without_an_answer_the_models_own_next_token_is_explained(stories):
    sample = Sample("own", "Once upon a time, there was a little")
    (row,) = judge(build_protocol("context", {}), stories, [sample], choose_one("gradient"))
    assert row["answered"] == 1
    assert row["log_probability"] < 0


@pytest.mark.slow
def test_a_table_of_prompts_is_judged(stories, quick, tmp_path):
    table = tmp_path / "prompts.csv"
    table.write_text("prompt,answer\nTom has a red ball. Tom plays with his red,ball\n")
    result = benchmark.run("context:replace=delete", stories, table, "gae", out=tmp_path / "run")
    assert [metric.name for metric in result.table.metrics if metric.ranked] == ["drop, delete"]
    assert "The first token of each prompt stays." in result.table.notes[0]


def test_what_cannot_be_judged_is_refused(stories, bert):
    protocol = build_protocol("context", {})
    with pytest.raises(WhenceError, match="is for language models, which generate text"):
        protocol.check(bert, "text", PROMPTS[0])
    with pytest.raises(WhenceError, match="too few tokens"):
        protocol.prepare(stories, Sample("short", "Tom"))
    with pytest.raises(WhenceError, match="none of unknown words"):
        build_protocol("context", {"replace": "unknown"}).check(stories, "text", PROMPTS[0])
