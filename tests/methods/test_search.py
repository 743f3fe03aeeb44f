"""`search` among aggregations of attention."""

import itertools
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from tests.methods.search_formula import (
    build_small_bert,
    build_small_vit,
    find_best,
    list_candidates,
)
from tests.test_golden import CLASS_TOKEN
from tests.zoo import CASES, HandWrittenViT, build_model, make_images, make_texts, select_samples
from whence import Explainer, Explanation, WhenceError


def check_winner(found: dict, scores: Tensor, expected) -> None:
    setting, best, faithful = expected
    assert tuple(found["setting"].values()) == setting
    assert found["faithfulness"] == pytest.approx(faithful, rel=1e-8)
    assert found["candidates"] == found["rated"] == 4 * 5 * 4
    assert torch.allclose(scores, best, rtol=1e-8)


@pytest.mark.parametrize("score", ["area", "ranked"])
@pytest.mark.parametrize("average", [False, True])
def test_exhaustive_search_on_images(average, score):
    model, pixels = build_small_vit(average), make_images(32, 32).double()
    classes = [0, 3]
    result = Explainer(model).explain(
        pixels, classes=classes, method="search", budget=1000, score=score, keep_evidence=True
    )
    prefix = 0 if average else 1
    places = list(range(prefix, prefix + 16))
    read = [1 / 16] * 16 if average else [1.0] + [0.0] * 16
    winners = set()
    for n, (c, target) in itertools.product(range(3), enumerate(classes)):

        def probability(deleted, n=n, target=target):
            image = pixels[n].clone()
            for patch in (token - prefix for token in deleted):
                row, column = 8 * (patch // 4), 8 * (patch % 4)
                image[:, row : row + 8, column : column + 8] = 0
            with torch.no_grad():
                return model(image[None]).softmax(1)[0, target].item()

        evidence = result.evidence
        candidates = list_candidates(
            [a[n] for a in evidence.attention], [g[n, c] for g in evidence.gradient], read
        )
        setting, best, faithful = find_best(candidates, score, places, probability)
        found = result.details[n][c]
        check_winner(found, result.scores[n, c], (setting, best[prefix:], faithful))
        winners.add(setting)
    assert len(winners) > 1


@pytest.mark.parametrize("score", ["area", "ranked"])
def test_exhaustive_search_on_padded_texts(score):
    """Every text of a padded batch gets what it gets alone and without padding."""
    model, inputs = build_small_bert(), make_texts()
    explainer = Explainer(model, layout=CLASS_TOKEN)
    result = explainer.explain(inputs, target=1, method="search", budget=1000, score=score)
    winners = set()
    for n, length in enumerate((10, 6, 9)):
        ids = inputs["input_ids"][n : n + 1, :length]
        embeddings = model.get_input_embeddings()(ids).detach()

        def probability(deleted, embeddings=embeddings):
            changed = embeddings.clone()
            changed[0, deleted] = 0
            with torch.no_grad():
                return model(inputs_embeds=changed).logits.softmax(1)[0, 1].item()

        kept = explainer.explain(
            {"input_ids": ids}, target=1, method="gae", keep_evidence=True
        ).evidence
        candidates = list_candidates(
            [a[0] for a in kept.attention],
            [g[0] for g in kept.gradient],
            [1.0] + [0.0] * (length - 1),
        )
        places = list(range(1, length))
        setting, best, faithful = find_best(candidates, score, places, probability)
        best = best.clone()
        best[0] = best[1:].min()  # the token that is read
        check_winner(result.details[n], result.scores[n, :length], (setting, best, faithful))
        assert (result.scores[n, length:] == 0).all()
        winners.add(setting)
    assert len(winners) > 1


@pytest.mark.parametrize("score", ["area", "ranked"])
def test_no_candidate_is_more_faithful_than_the_winner(score):
    explainer, inputs = Explainer(build_small_bert()), make_texts()
    options = {"target": 2, "method": "search", "score": score}
    best = explainer.explain(inputs, budget=1000, **options)
    reached = [0, 0, 0]
    for heads, layers, rows in itertools.product(
        ("mean", "gradient", "0", "1"),
        ("mean", "product", "rollout", "0", "1"),
        ("read", "to", "mean", "max"),
    ):
        one = explainer.explain(inputs, heads=[heads], layers=[layers], rows=[rows], **options)
        for n in range(3):
            alone, found = one.details[n], best.details[n]
            assert alone["candidates"] == 1
            assert found["faithfulness"] >= alone["faithfulness"] - 1e-12
            if alone["setting"] == found["setting"]:
                assert torch.allclose(one.scores[n], best.scores[n], rtol=1e-8)
                reached[n] += 1
    assert reached == [1, 1, 1]


class CountingViT(HandWrittenViT):
    rows: ClassVar[list[int]] = []

    def forward(self, image):
        self.rows.append(len(image))
        return super().forward(image)


@pytest.mark.parametrize("budget", [1, 5, 40])
def test_the_budget_is_kept(budget):
    CountingViT.rows.clear()
    pixels = make_images(32, 32)
    result = Explainer(CountingViT(), per_sample=(0,)).explain(
        pixels, method="search", budget=budget, fractions=(0.2, 0.5)
    )
    assert 3 < sum(CountingViT.rows) <= 3 + 3 * 2 * 2 * budget
    # Four heads, three layers: (2 + 4) * (3 + 3) * 4.
    for found in result.details:
        assert (found["rated"], found["candidates"]) == (budget, 144)


def test_ranked_needs_one_pass_a_token_whatever_the_budget():
    CountingViT.rows.clear()
    Explainer(CountingViT(), per_sample=(0,)).explain(
        make_images(32, 32), method="search", score="ranked", budget=1000
    )
    assert sum(CountingViT.rows) == 3 + 3 * (1 + 16)


@pytest.mark.parametrize(
    "name",
    ["ViTForImageClassification-sdpa", "Bert-eager", "Dinov2ForImageClassification-sdpa"],
)
def test_it_does_not_depend_on_the_batch_or_on_memory(name):
    case = CASES[name]
    inputs = {
        key: value.double() if value.is_floating_point() else value
        for key, value in case.inputs().items()
    }
    explainer = Explainer(build_model(case).double())
    together = explainer.explain(inputs, target=1, method="search", budget=30)
    assert len({str(found["setting"]) for found in together.details}) > 1
    for n in range(3):
        one = select_samples(inputs, slice(n, n + 1))
        alone = explainer.explain(one, target=1, method="search", budget=30, memory=1e-9)
        found, other = alone.details[0], together.details[n]
        assert found["setting"] == other["setting"]
        assert found["faithfulness"] == pytest.approx(other["faithfulness"], rel=1e-6)
        assert torch.allclose(alone.scores[0], together.scores[n], rtol=1e-6)


def test_several_classes_are_as_each_alone(monkeypatch):
    explainer, pixels = Explainer(build_small_vit()), make_images(32, 32).double()
    monkeypatch.setattr("whence.engine.eager._MAPS_AT_ONCE", 6)
    several = explainer.explain(pixels, classes=[2, 0, 4], method="search")
    for n, target in enumerate((2, 0, 4)):
        one = explainer.explain(pixels, target=target, method="search")
        assert torch.allclose(several.scores[:, n], one.scores)
        for found, other in zip(several.details, one.details, strict=True):
            assert found[n]["setting"] == other["setting"]


def test_it_is_deterministic_and_saved_with_its_winner(tmp_path):
    explainer, pixels = Explainer(HandWrittenViT()), make_images(32, 32)
    state = torch.random.get_rng_state()
    first, second = (explainer.explain(pixels, method="search") for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first.scores, second.scores)
    assert first.settings == second.settings
    first.save(tmp_path / "one.safetensors")
    assert Explanation.load(tmp_path / "one.safetensors").details == first.details


def test_of_equal_candidates_the_first_wins():
    model = build_small_vit()
    with torch.no_grad():
        for block in model.blocks:
            block.qkv[:2] = 0  # every token attends to all alike
    explainer = Explainer(model)
    for heads in (("1", "mean", "0"), ("mean", "0")):
        for score in ("area", "ranked"):
            result = explainer.explain(
                make_images(32, 32).double(),
                method="search",
                heads=heads,
                layers=("each", "mean"),
                rows=("max",),
                score=score,
            )
            # What joins all heads and layers comes before single ones.
            for found in result.details:
                assert found["setting"] == {"heads": "mean", "layers": "mean", "rows": "max"}
    result = explainer.explain(
        make_images(32, 32).double(), method="search", heads=("1", "0"), layers=("1", "0")
    )
    for found in result.details:
        assert found["setting"] == {"heads": "1", "layers": "1", "rows": "read"}
        assert found["faithfulness"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, r"budget=0 must be at least 1"),
        ({"fractions": ()}, r"fractions=\(\) must be numbers above 0 and up to 1"),
        ({"fractions": (0.1, 1.5)}, r"must be numbers above 0 and up to 1"),
        ({"heads": ("²",)}, r"must be some of mean, gradient, each, or numbers"),
        ({"heads": ("max",)}, r"must be some of mean, gradient, each, or numbers"),
        ({"layers": ()}, r"must be some of mean, product, rollout, each, or numbers"),
        ({"rows": ("0",)}, r"must be some of read, to, mean, max\."),
        ({"heads": ("4",)}, r"heads=4 does not exist here: choose from 0 to 3"),
        ({"layers": ("0",), "first_layer": 1}, r"layers=0 does not exist here.* from 1 to 2"),
        ({"first_layer": 3}, r"name no layers: the model has 3 attention layers, 0 to 2"),
        ({"first_layer": 2, "last_layer": 1}, r"first_layer=2 and last_layer=1 name no layers"),
        ({"last_layer": -2}, r"last_layer=-2 name no layers"),
        ({"score": "best"}, r"'score' of method 'search' must be 'area' or 'ranked'"),
        ({"candidates": "methods", "methods": ()}, r"Name the methods to choose from"),
        ({"candidates": "methods", "methods": ("tiab",)}, r"no method 'tiab'. Did you mean"),
        ({"candidates": "methods", "methods": ("arbitration",)}, r"cannot be one of the methods"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(WhenceError, match=message):
        Explainer(HandWrittenViT()).explain(make_images(32, 32), method="search", **options)


@pytest.mark.parametrize("score", ["area", "ranked"])
def test_a_logit_that_nothing_moves(score):
    model = HandWrittenViT()
    with torch.no_grad():
        model.head.weight.zero_()
    result = Explainer(model).explain(make_images(32, 32), classes=2, method="search", score=score)
    assert result.scores.isfinite().all()
    for found in itertools.chain(*result.details):
        assert found["faithfulness"] == 0
        assert found["setting"] == {"heads": "mean", "layers": "mean", "rows": "read"}


@pytest.mark.parametrize("score", ["area", "ranked"])
def test_a_text_of_one_token_and_an_empty_image(score):
    ids = torch.tensor([[7], [8]])
    result = Explainer(build_small_bert()).explain({"input_ids": ids}, method="search", score=score)
    assert result.scores.shape == (2, 1)
    assert result.scores.isfinite().all()
    blank = torch.zeros(2, 3, 32, 32, dtype=torch.float64)
    result = Explainer(build_small_vit()).explain(blank, method="search", score=score)
    assert result.scores.isfinite().all()
    # Nothing is lost where nothing was.
    for found in result.details:
        assert found["faithfulness"] == pytest.approx(0, abs=1e-12)
        assert found["setting"] == {"heads": "mean", "layers": "mean", "rows": "read"}
