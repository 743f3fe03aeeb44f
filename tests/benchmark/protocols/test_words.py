from itertools import pairwise

import pytest
import torch

from tests.benchmark.helpers import choose_one, judge, read_samples
from whence import Explainer, benchmark
from whence.benchmark import build_protocol
from whence.datasets import Sample
from whence.errors import WhenceError
from whence.models import load

STEPS = [n / 10 for n in range(10)]
TEXTS = [
    "the film was very good",
    "it is not bad and the film was awful , truly awful",
    "good film",
]


def make_samples(labels=(1, 0, None)):
    pairs = zip(TEXTS, labels, strict=True)
    return [Sample(f"t{n}", text, label) for n, (text, label) in enumerate(pairs)]


def replace_plainly(bert, text, target, replacement, order, method="tiba"):
    """The class's logits at each step, one text and one step at a time."""
    encoded = bert.tokenizer(text, return_tensors="pt")
    tokens = Explainer(bert.model).explain(dict(encoded), target=target, method=method)
    words: dict[int, float] = {}
    for word, score in zip(encoded.word_ids(0), tokens.scores[0].tolist(), strict=True):
        if word is not None:
            words[word] = words.get(word, 0.0) + score
    sign = -1 if order == "MoRF" else 1
    sequence = sorted(words, key=lambda word: (sign * words[word], word))
    found = []
    for step in STEPS:
        gone = set(sequence[: int(step * len(words) + 1e-9)])
        if replacement == "mask":
            ids = [
                bert.tokenizer.mask_token_id if word in gone else token
                for word, token in zip(
                    encoded.word_ids(0), encoded.input_ids[0].tolist(), strict=True
                )
            ]
            inputs = {**encoded, "input_ids": torch.tensor([ids])}
        else:
            spans = [encoded.word_to_chars(0, word) for word in sorted(words) if word not in gone]
            inputs = bert.tokenizer(" ".join(text[a:b] for a, b in spans), return_tensors="pt")
        with torch.no_grad():
            found.append(bert.model(**inputs).logits[0].double())
    return torch.stack(found)


def area(values):
    return 100 * sum(0.1 * (a + b) / 2 for a, b in pairwise(values))


def test_words_against_plain_loops(bert):
    samples = make_samples()
    rows = judge(build_protocol("words", {}), bert, samples, choose_one("tiba"))
    wrong = 0
    for sample, row in zip(samples, rows, strict=True):
        classes = {"predicted": row["predicted"], "target": sample.label}
        wrong += sample.label is not None and sample.label != row["predicted"]
        for which, target in classes.items():
            if target is None:
                assert f"MoRF_mask_{which}_probability" not in row
                continue
            for replacement in ("mask", "delete"):
                areas = {}
                for order in ("MoRF", "LeRF"):
                    logits = replace_plainly(bert, sample.content, target, replacement, order)
                    kind = f"{order}_{replacement}_{which}"
                    chances = logits.softmax(-1)[:, target].tolist()
                    assert row[f"{kind}_probability"] == pytest.approx(chances, abs=1e-5), kind
                    assert row[f"{kind}_logit"] == pytest.approx(
                        logits[:, target].tolist(), abs=1e-5
                    )
                    label = row["predicted"] if sample.label is None else sample.label
                    right = [float(int(one.argmax()) == label) for one in logits]
                    assert row[f"{kind}_accuracy"] == right
                    areas[order] = area(chances)
                    assert row[f"{kind}_probability_auc"] == pytest.approx(areas[order], abs=1e-3)
                difference = row[f"difference_{replacement}_{which}_probability"]
                assert difference == pytest.approx(areas["LeRF"] - areas["MoRF"], abs=1e-3)
        means = [row[f"difference_{one}_predicted_probability"] for one in ("mask", "delete")]
        assert row["difference"] == pytest.approx(sum(means) / 2)
    assert wrong  # the map of the true class was another one


def test_batches_do_not_change_rows(bert):
    protocol, method = build_protocol("words", {"replace": "mask"}), choose_one("gae")
    together = judge(protocol, bert, make_samples(), method)
    for sample, row in zip(make_samples(), together, strict=True):
        (alone,) = judge(protocol, bert, [sample], method)
        assert alone["difference"] == pytest.approx(row["difference"], abs=1e-3)
        assert "MoRF_delete_predicted_probability" not in alone


def test_a_run_on_marked_reviews_and_its_table(bert, reviews, quick, tmp_path):
    result = benchmark.run("words", bert, reviews, "tiba,random", out=tmp_path / "run", limit=2)
    shown = [metric.name for metric in result.table.metrics if metric.ranked]
    assert shown == ["LeRF - MoRF, mask", "LeRF - MoRF, delete"]
    assert result.table.get_cell("tiba", result.table.metrics[0]).samples == 2
    assert "becomes [MASK] or" in result.table.notes[0]
    assert "right on" in " ".join(result.table.notes)


def test_what_cannot_be_judged_is_refused(bert, stories, photos, vit):
    protocol, sample = build_protocol("words", {}), make_samples()[0]
    with pytest.raises(WhenceError, match="generates text; for such models there is `whence"):
        protocol.check(stories, "text", sample)
    with pytest.raises(WhenceError, match="replaces words of texts"):
        benchmark.run("words", vit, photos)
    with pytest.raises(WhenceError, match="single word"):
        protocol.prepare(bert, Sample("one", "good"))
    with pytest.raises(WhenceError, match="'replace' is 'mask' or 'delete'"):
        build_protocol("words", {"replace": "blur"})


def test_reviews_are_judged_by_the_words_that_were_read(bert, reviews):
    (sample,) = read_samples(reviews)[-1:]
    (row,) = judge(build_protocol("words", {"replace": "mask"}), bert, [sample], choose_one("gae"))
    assert row["words"] < len(sample.words)


@pytest.mark.slow
def test_soft_figures_depend_on_the_text_alone():
    model = load("sentiment", device="cpu")
    protocol = build_protocol("words", {"replace": "mask", "soft": "4"})
    protocol.start(["t0", "t1", "t2"], 7)
    together = judge(protocol, model, make_samples(), choose_one("gae"))
    assert any(row["soft_comprehensiveness"] > 0 for row in together)
    for sample, row in zip(make_samples(), together, strict=True):
        (alone,) = judge(protocol, model, [sample], choose_one("gae"))
        for name in ("soft_sufficiency", "soft_comprehensiveness"):
            assert 0 <= row[name] <= 1
            assert alone[name] == pytest.approx(row[name], abs=1e-3)
    with pytest.raises(WhenceError, match="'soft' is a number of draws from 0"):
        build_protocol("words", {"soft": -1})
