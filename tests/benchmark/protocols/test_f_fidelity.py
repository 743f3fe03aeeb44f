import dataclasses
import pickle

import pytest
import torch

from tests.benchmark.helpers import choose_one, read_samples
from tests.benchmark.runs import list_files, read_table
from whence import WhenceError, benchmark, datasets
from whence._util.fingerprint import hash_weights
from whence.benchmark import build_protocol
from whence.benchmark.fine_tuning import FineTuning
from whence.benchmark.protocols import f_fidelity as module
from whence.metrics.deletion import FRACTIONS
from whence.models.image_preprocessing import PixelScale

OPTIONS = {"steps": 2, "rate": 1e-3, "draws": 3, "fill": "zero", "beta": 0.4}


@pytest.fixture(scope="module")
def fitted(vit, photos):
    dataset = datasets.load(photos)
    protocol = build_protocol("f_fidelity", OPTIONS)
    protocol.start(dataset.list_names(), seed=5)
    protocol.fit(vit, dataset, dataset.list_names(), None)
    return protocol


@torch.no_grad()
def lose_plainly(protocol, loaded, sample, scores, grid, target, side):
    """Mean loss of the class, one removal and one forward at a time: probability and accuracy."""
    model, pixels = protocol._copy.model, loaded.prepare([sample.content]).inputs
    noise = torch.rand(
        protocol.draws,
        len(scores),
        generator=torch.Generator().manual_seed(module._make_seed(sample.name, 5)),
    )
    order = sorted(range(len(scores)), key=lambda at: (-scores[at], at))
    # The rest is what is left of the lowest first, which goes by position where scores tie.
    rising = sorted(range(len(scores)), key=lambda at: (scores[at], at))
    black = PixelScale.from_model(loaded).to_model(torch.zeros(3, 1, 1))
    high, wide = (size // cells for size, cells in zip(pixels.shape[-2:], grid, strict=True))

    def judge(given):
        logits = model(given).logits[0]
        return float(logits.softmax(0)[target]), float(int(logits.argmax()) == target)

    clean, lost = judge(pixels), []
    for size in FRACTIONS:
        count = max(1, round(size * len(scores)))
        part = order[:count] if side == "plus" else rising[: len(scores) - count]
        chance = min(protocol.alpha, protocol.beta * len(scores) / max(len(part), 1))
        for draw in noise.tolist():
            changed = pixels.clone()
            for at in part:
                if draw[at] < chance:
                    row, column = divmod(at, grid[1])
                    changed[
                        0,
                        :,
                        row * high : (row + 1) * high,
                        column * wide : (column + 1) * wide,
                    ] = black
            found = judge(changed)
            lost.append([before - after for before, after in zip(clean, found, strict=True)])
    return [sum(values) / len(values) for values in zip(*lost, strict=True)]


def test_figures_are_those_of_a_plain_loop(fitted, vit, photos):
    samples = read_samples(photos, 3)
    rows = fitted.compute_rows(
        vit, [fitted.prepare(vit, one) for one in samples], choose_one("gae")
    )
    for sample, row in zip(samples, rows, strict=True):
        own = vit.explainer.explain(vit.prepare([sample.content]).inputs, method="gae")
        assert row["predicted"] == int(own.target)
        for side in ("plus", "minus"):
            scores = own.scores[0].tolist()
            grid, target = own.picture_grid, int(own.target)
            found = lose_plainly(fitted, vit, sample, scores, grid, target, side)
            assert row[f"{side}_probability_mean"] == pytest.approx(found[0], abs=1e-5)
            assert row[f"{side}_accuracy_mean"] == pytest.approx(found[1], abs=1e-6)
            assert len(row[f"{side}_probability"]) == len(FRACTIONS)


@pytest.fixture(scope="module")
def fitted_to_texts(bert, reviews):
    dataset = datasets.load(reviews)
    protocol = build_protocol("f_fidelity", OPTIONS)
    protocol.start(dataset.list_names(), seed=5)
    protocol.fit(bert, dataset, dataset.list_names(), None)
    return protocol


@torch.no_grad()
def test_figures_of_texts_are_those_of_a_plain_loop(fitted_to_texts, bert, reviews):
    protocol, samples = fitted_to_texts, read_samples(reviews, 3)
    prepared = [protocol.prepare(bert, one) for one in samples]
    rows = protocol.compute_rows(bert, prepared, choose_one("gae"))
    assert hash_weights(protocol._copy.model) != hash_weights(bert.model)
    for sample, row in zip(samples, rows, strict=True):
        inputs = bert.prepare([sample.content]).inputs
        words = inputs.encodings[0].word_ids
        own = bert.explainer.explain(dict(inputs), method="gae")
        order = [word for word in dict.fromkeys(words) if word is not None]
        scores = [
            sum(
                score for score, of in zip(own.scores[0].tolist(), words, strict=True) if of == word
            )
            for word in order
        ]
        falling = sorted(range(len(scores)), key=lambda at: (-round(scores[at], 12), at))
        count = max(1, round(0.2 * len(scores)))
        chance = min(protocol.alpha, protocol.beta * len(scores) / count)
        seed = module._make_seed(sample.name, 5)
        noise = torch.rand(3, len(scores), generator=torch.Generator().manual_seed(seed))

        def judge(ids, inputs=inputs, target=int(own.target)):
            given = dict(inputs) | {"input_ids": torch.tensor([ids])}
            return float(protocol._copy.model(**given).logits[0].softmax(0)[target])

        ids, after = inputs["input_ids"][0].tolist(), []
        for draw in noise.tolist():
            gone = {order[at] for at in falling[:count] if draw[at] < chance}
            after.append(
                judge(
                    [
                        bert.tokenizer.mask_token_id if word in gone else token
                        for token, word in zip(ids, words, strict=True)
                    ]
                )
            )
        lost = judge(ids) - sum(after) / len(after)
        assert row["plus_probability"][1] == pytest.approx(lost, abs=1e-5)


def test_rows_of_texts_do_not_depend_on_padding(fitted_to_texts, bert, reviews):
    protocol = fitted_to_texts
    prepared = [protocol.prepare(bert, one) for one in read_samples(reviews, 3)]
    together = protocol.compute_rows(bert, prepared, choose_one("gae"))
    for one, row in zip(prepared, together, strict=True):
        (alone,) = protocol.compute_rows(bert, [one], choose_one("gae"))
        for side in ("plus", "minus"):
            mean = f"{side}_probability_mean"
            assert alone[mean] == pytest.approx(row[mean], abs=1e-5)


def test_rows_do_not_depend_on_the_batch(fitted, vit, photos):
    prepared = [fitted.prepare(vit, one) for one in read_samples(photos, 3)]
    together = fitted.compute_rows(vit, prepared, choose_one("gradient"))
    for one, row in zip(prepared, together, strict=True):
        (alone,) = fitted.compute_rows(vit, [one], choose_one("gradient"))
        mean = "plus_probability_mean"
        assert alone[mean] == pytest.approx(row[mean], abs=1e-6)


def test_a_run_that_is_resumed_reads_the_copy_and_gives_the_same_table(
    vit, photos, tmp_path, quick, monkeypatch
):
    def run(**changes):
        given = {"methods": "gae,random", "batch": 4, "limit": 4, "out": tmp_path} | changes
        return benchmark.run("f_fidelity", vit, photos, **given, **OPTIONS)

    before, first = hash_weights(vit.model), run()
    assert hash_weights(vit.model) == before
    assert (tmp_path / "fine_tuned.safetensors").stat().st_size > 1000
    table, notes = read_table(tmp_path), first.table.notes
    assert any("2 step(s)" in note and "by the labels" in note for note in notes)
    assert any("4 of which are judged too" in note for note in notes)  # there are only nine

    def refuse(*_):
        raise AssertionError

    list_files(tmp_path)[0].unlink()
    with monkeypatch.context() as patched:
        patched.setattr(FineTuning, "run", refuse)
        again = run()
    assert (read_table(tmp_path), again.table.notes) == (table, notes)
    # Damaged, it is made again, the same.
    (tmp_path / "fine_tuned.safetensors").write_bytes(b"half a file")
    list_files(tmp_path)[0].unlink()
    run()
    assert read_table(tmp_path) == table


def test_another_process_reads_the_copy(vit, photos, tmp_path):
    dataset = datasets.load(photos)
    protocol = build_protocol("f_fidelity", OPTIONS)
    protocol.fit(vit, dataset, dataset.list_names()[:4], tmp_path)
    sent = pickle.dumps(protocol)
    assert len(sent) < 20_000
    prepared = [protocol.prepare(vit, one) for one in read_samples(photos, 2)]
    method = choose_one("gae")
    rows = protocol.compute_rows(vit, prepared, method)
    assert pickle.loads(sent).compute_rows(vit, prepared, method) == rows
    (tmp_path / "fine_tuned.safetensors").unlink()
    with pytest.raises(WhenceError, match="call the protocol's fit first"):
        pickle.loads(sent).compute_rows(vit, prepared, method)


def test_wrong_input_is_refused(vit, bert, photos, reviews):
    with pytest.raises(WhenceError, match="alpha and beta"):
        build_protocol("f_fidelity", {"beta": 0.0})
    with pytest.raises(WhenceError, match="drawn once at least"):
        build_protocol("f_fidelity", {"draws": 0})
    with pytest.raises(WhenceError, match="0 steps or more"):
        build_protocol("f_fidelity", {"steps": -1})
    protocol = build_protocol("f_fidelity", {})
    (text,) = read_samples(reviews, 1)
    with pytest.raises(WhenceError, match="for classifiers"):
        protocol.check(dataclasses.replace(bert, generates=True), "text", text)
    with pytest.raises(WhenceError, match="a single number"):
        protocol.check(dataclasses.replace(bert, class_count=1), "text", text)
    prepared = [protocol.prepare(vit, one) for one in read_samples(photos, 1)]
    with pytest.raises(WhenceError, match="call the protocol's fit first"):
        protocol.compute_rows(vit, prepared, choose_one("gae"))
