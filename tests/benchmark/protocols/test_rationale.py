import numpy as np
import pytest
import torch

from tests.benchmark.helpers import choose_one, judge, read_samples
from whence import Explainer
from whence.benchmark import build_protocol


def test_rationale(bert, reviews):
    batch = read_samples(reviews)
    rows = judge(build_protocol("rationale", {}), bert, batch, choose_one("tiba"))
    for sample, row in zip(batch, rows, strict=True):
        target = {"NEG": 0, "POS": 1}[sample.label]
        encoded = bert.tokenizer(
            [list(sample.words)],
            is_split_into_words=True,
            truncation=True,
            max_length=64,
            return_tensors="pt",
        )
        found = Explainer(bert.model).explain(dict(encoded), target=target, method="tiba")
        words: dict[int, float] = {}
        for word, score in zip(encoded.word_ids(0), found.scores[0].tolist(), strict=True):
            if word is not None:
                words[word] = words.get(word, 0) + score
        assert row["read"] == len(words) <= len(sample.words) == row["words"]
        ranking = sorted(words, key=lambda w: (-words[w], w))
        for at, k in enumerate(range(10, 90, 10)):
            taken = set(ranking[:k])
            right = len(taken & {3, 4})
            precision, recall = right / len(taken), right / 2
            f1 = 2 * precision * recall / (precision + recall) if right else 0
            assert row["f1"][at] == pytest.approx(f1, abs=1e-9), (sample.name, k)

        def chance(kept, sample=sample, target=target):
            text = [sample.words[w] for w in kept]
            inputs = bert.tokenizer([text], is_split_into_words=True, return_tensors="pt")
            with torch.no_grad():
                return float(bert.model(**inputs).logits.double().softmax(-1)[0, target])

        full = chance(sorted(words))
        lost, missed = [], []
        for share in (0.01, 0.05, 0.1, 0.2, 0.5):
            highest = set(ranking[: int(np.ceil(share * len(words) - 1e-9))])
            lost.append(full - chance([w for w in sorted(words) if w not in highest]))
            missed.append(full - chance(sorted(highest)))
        assert row["comprehensiveness"] == pytest.approx(np.mean(lost), abs=1e-5)
        assert row["sufficiency"] == pytest.approx(np.mean(missed), abs=1e-5)
    assert rows[-1]["read"] < rows[-1]["words"]


def test_marked_words_are_compared_with_where_a_method_says_the_target_lies(bert, reviews):
    batch, protocol = read_samples(reviews), build_protocol("rationale", {})
    both, where, why = (
        judge(protocol, bert, batch, choose_one(name))
        for name in ("whence", "whence:reading=location", "whence:reading=evidence")
    )
    for own, located, scored in zip(both, where, why, strict=True):
        assert own["f1"] == located["f1"]
        assert own["auprc"] == located["auprc"]
        assert own["comprehensiveness"] == scored["comprehensiveness"]
        assert own["sufficiency"] == scored["sufficiency"]
    assert any(a["auprc"] != b["auprc"] for a, b in zip(where, why, strict=True))
