import itertools
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from tests.zoo import CASES, HandWrittenViT, built, images, sample, texts
from whence import Explainer, Explanation, WhenceError, methods
from whence.methods import registry
from whence.methods.search import Search

FRACTIONS = (0.1, 0.2, 0.3, 0.4, 0.5)


# Small models ------------------------------------------------------------------------------------


def small_vit(average: bool = False) -> nn.Module:
    """Two layers of two heads; the class token is read, or all tokens are."""

    class Averages(HandWrittenViT):
        def forward(self, image):
            p = self.patch
            x = image.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3)
            x = self.embed(x.flatten(1, 2)) + self.positions[1:]
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x).mean(1))

    torch.manual_seed(3)
    model = (Averages if average else HandWrittenViT)(heads=2)
    model.blocks = model.blocks[:2]
    with torch.no_grad():
        for block in model.blocks:
            block.qkv *= 2
    return model.double().eval()


def small_bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        vocab_size=100,
        max_position_embeddings=64,
        num_labels=3,
    )
    torch.manual_seed(1)
    model = transformers.BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.double()


# The search, written plainly for one sample ------------------------------------------------------


def candidates_of(attention: list[Tensor], gradient: list[Tensor], read: list[float]):
    """Each setting with its scores; maps are (heads, tokens, tokens), of one sample."""
    tokens = attention[0].shape[-1]
    identity = torch.eye(tokens, dtype=torch.float64)
    for heads in ("mean", "gradient", "0", "1"):
        maps = []
        for a, g in zip(attention, gradient, strict=True):
            if heads == "mean":
                maps.append((a[0] + a[1]) / 2)
            elif heads == "gradient":
                maps.append(((a[0] * g[0]).relu() + (a[1] * g[1]).relu()) / 2)
            else:
                maps.append(a[int(heads)])
        with_skip = [(identity + m) / (identity + m).sum(1, keepdim=True) for m in maps]
        joined = {
            "mean": (maps[0] + maps[1]) / 2,
            "product": maps[1] @ maps[0],
            "rollout": with_skip[1] @ with_skip[0],
            "0": maps[0],
            "1": maps[1],
        }
        for layers, one in joined.items():
            weighted = sum(w * one[i] for i, w in enumerate(read))
            yield (heads, layers, "read"), weighted
            yield (heads, layers, "to"), sum(w * one[:, i] for i, w in enumerate(read))
            yield (heads, layers, "mean"), sum(one) / tokens
            yield (heads, layers, "max"), torch.stack(list(one)).amax(0)


def area_of(scores: Tensor, places: list[int], probability) -> float:
    total = 0.0
    for fraction in FRACTIONS:
        count = max(1, round(fraction * len(places)))
        highest = sorted(places, key=lambda t: -scores[t].item())[:count]
        lowest = sorted(places, key=lambda t: scores[t].item())[:count]
        total += probability(lowest) - probability(highest)
    return total / len(FRACTIONS)


def ranked_of(scores: Tensor, places: list[int], probability) -> float:
    total = 0.0
    for token in places:
        rank = sum(scores[other] >= scores[token] for other in places)
        total += (probability([]) - probability([token])) / int(rank)
    return total


def best_of(candidates, score: str, places: list[int], probability):
    """Setting, scores and faithfulness of the best candidate, the first of equals."""
    known = {}

    def remembered(deleted: list[int]) -> float:
        key = tuple(sorted(deleted))
        if key not in known:
            known[key] = probability(list(key))
        return known[key]

    def rate(scores: Tensor) -> float:
        # Without what is but rounding: a map may be the same everywhere.
        scores = (scores / (scores[places].max() or 1)).round(decimals=12)
        return (area_of if score == "area" else ranked_of)(scores, places, remembered)

    # Single heads and layers come after what joins all of them.
    order = sorted(candidates, key=lambda c: c[0][0].isdigit() or c[0][1].isdigit())
    all_rated = [(*one, rate(one[1])) for one in order]
    most = max(faithful for _, _, faithful in all_rated)
    return next(one for one in all_rated if one[2] > most - 1e-14)


def check(found: dict, scores: Tensor, expected) -> None:
    setting, best, faithful = expected
    assert tuple(found["setting"].values()) == setting
    assert found["faithfulness"] == pytest.approx(faithful, rel=1e-8)
    assert found["candidates"] == found["rated"] == 4 * 5 * 4
    assert torch.allclose(scores, best, rtol=1e-8)


@pytest.mark.parametrize("score", ["area", "ranked"])
@pytest.mark.parametrize("average", [False, True])
def test_exhaustive_search_on_images(average, score):
    model, pixels = small_vit(average), images(32, 32).double()
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
        candidates = candidates_of(
            [a[n] for a in evidence.attention], [g[n, c] for g in evidence.gradient], read
        )
        setting, best, faithful = best_of(candidates, score, places, probability)
        found = result.details[n][c]
        check(found, result.scores[n, c], (setting, best[prefix:], faithful))
        winners.add(setting)
    assert len(winners) > 1


@pytest.mark.parametrize("score", ["area", "ranked"])
def test_exhaustive_search_on_padded_texts(score):
    """Every text of a padded batch gets what it gets alone and without padding."""
    model, inputs = small_bert(), texts()
    explainer = Explainer(model)
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

        kept = explainer.explain({"input_ids": ids}, target=1, keep_evidence=True).evidence
        candidates = candidates_of(
            [a[0] for a in kept.attention],
            [g[0] for g in kept.gradient],
            [1.0] + [0.0] * (length - 1),
        )
        places = list(range(1, length))
        setting, best, faithful = best_of(candidates, score, places, probability)
        best = best.clone()
        best[0] = best[1:].min()  # the token that is read
        check(result.details[n], result.scores[n, :length], (setting, best, faithful))
        assert (result.scores[n, length:] == 0).all()
        winners.add(setting)
    assert len(winners) > 1


@pytest.mark.parametrize("rows", ["read", "to", "mean", "max"])
@pytest.mark.parametrize("heads", ["mean", "gradient"])
def test_no_row_counts_padding(heads, rows):
    explainer, inputs = Explainer(small_bert()), texts()
    options = {"method": "search", "target": 0, "heads": [heads], "rows": [rows]}
    for layers in ("mean", "product", "rollout"):
        padded = explainer.explain(inputs, layers=[layers], **options)
        for n, length in enumerate((10, 6, 9)):
            ids = inputs["input_ids"][n : n + 1, :length]
            alone = explainer.explain({"input_ids": ids}, layers=[layers], **options)
            # Words have no gradient where only the first token's row of the last map is read.
            assert alone.scores.max() > 0 or (heads, rows) == ("gradient", "to")
            assert torch.allclose(padded.scores[n, :length], alone.scores[0], rtol=1e-8)


# What the search promises ------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["area", "ranked"])
def test_no_candidate_is_more_faithful_than_the_winner(score):
    explainer, inputs = Explainer(small_bert()), texts()
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
            alone, found = one.details[n], best.found[n]
            assert alone["candidates"] == 1
            assert found["faithfulness"] >= alone["faithfulness"] - 1e-12
            if alone["setting"] == found["setting"]:
                assert torch.allclose(one.scores[n], best.scores[n], rtol=1e-8)
                reached[n] += 1
    assert reached == [1, 1, 1]


class Counts(HandWrittenViT):
    rows: ClassVar[list[int]] = []

    def forward(self, image):
        self.rows.append(len(image))
        return super().forward(image)


@pytest.mark.parametrize("budget", [1, 5, 40])
def test_the_budget_is_kept(budget):
    Counts.rows.clear()
    pixels = images(32, 32)
    result = Explainer(Counts()).explain(
        pixels, method="search", budget=budget, fractions=(0.2, 0.5)
    )
    assert 3 < sum(Counts.rows) <= 3 + 3 * 2 * 2 * budget
    # Four heads, three layers: (2 + 4) * (3 + 3) * 4.
    for found in result.details:
        assert (found["rated"], found["candidates"]) == (budget, 144)


def test_ranked_needs_one_pass_a_token_whatever_the_budget():
    Counts.rows.clear()
    Explainer(Counts()).explain(images(32, 32), method="search", score="ranked", budget=1000)
    assert sum(Counts.rows) == 3 + 3 * (1 + 16)


def test_aggregations_over_all_come_first_and_the_seed_draws_the_others():
    ways = Search()._ways(12, range(12))
    joint = [way for way in ways if way.joint]
    assert len(joint) == 2 * 3 * 4
    assert ways[: len(joint)] == joint
    assert ways[0] == ("mean", "mean", "read")
    drawn = [Search(seed=seed)._within_budget(ways) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    for chosen in drawn:
        assert chosen[: len(joint)] == joint
        assert len(set(chosen)) == 64
        assert [way for way in ways if way in set(chosen)] == chosen
    assert Search(budget=3)._within_budget(ways) == joint[:3]
    assert Search(budget=len(ways))._within_budget(ways) == ways


def test_the_authors_settings_of_bert_base():
    search = Search(heads=("mean", "each"), layers=("mean", "product", "each"))
    ways = search._ways(12, range(12))
    assert len(ways) == len(set(ways)) == 728


def test_a_range_of_layers_is_that_of_a_model_without_the_others():
    model, pixels = small_vit(), images(32, 32).double()
    explainer = Explainer(model)
    options = {"method": "search", "rows": ("max",)}
    last = explainer.explain(pixels, layers=("1",), **options)
    for layers in ("mean", "product", "each"):
        ranged = explainer.explain(pixels, layers=(layers,), first_layer=1, **options)
        assert torch.allclose(ranged.scores, last.scores)
    first = explainer.explain(pixels, layers=("product",), last_layer=0, **options)
    single = explainer.explain(pixels, layers=("0",), **options)
    assert torch.allclose(first.scores, single.scores)
    assert not torch.allclose(first.scores, last.scores)


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
    explainer = Explainer(built(case).double())
    together = explainer.explain(inputs, target=1, method="search", budget=30)
    assert len({str(found["setting"]) for found in together.found}) > 1
    for n in range(3):
        one = sample(inputs, slice(n, n + 1))
        alone = explainer.explain(one, target=1, method="search", budget=30, memory=1e-9)
        found, other = alone.found[0], together.found[n]
        assert found["setting"] == other["setting"]
        assert found["faithfulness"] == pytest.approx(other["faithfulness"], rel=1e-6)
        assert torch.allclose(alone.scores[0], together.scores[n], rtol=1e-6)


def test_several_classes_are_as_each_alone(monkeypatch):
    explainer, pixels = Explainer(small_vit()), images(32, 32).double()
    monkeypatch.setattr("whence.engine.eager._MAPS_AT_ONCE", 6)
    several = explainer.explain(pixels, classes=[2, 0, 4], method="search")
    for n, target in enumerate((2, 0, 4)):
        one = explainer.explain(pixels, target=target, method="search")
        assert torch.allclose(several.scores[:, n], one.scores)
        for found, other in zip(several.details, one.details, strict=True):
            assert found[n]["setting"] == other["setting"]


def test_it_is_deterministic_and_saved_with_its_winner(tmp_path):
    explainer, pixels = Explainer(HandWrittenViT()), images(32, 32)
    state = torch.random.get_rng_state()
    first, second = (explainer.explain(pixels, method="search") for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first.scores, second.scores)
    assert first.settings == second.settings
    first.save(tmp_path / "one")
    assert Explanation.load(tmp_path / "one").found == first.details


def test_of_equal_candidates_the_first_wins():
    model = small_vit()
    with torch.no_grad():
        for block in model.blocks:
            block.qkv[:2] = 0  # every token attends to all alike
    explainer = Explainer(model)
    for heads in (("1", "mean", "0"), ("mean", "0")):
        for score in ("area", "ranked"):
            result = explainer.explain(
                images(32, 32).double(),
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
        images(32, 32).double(), method="search", heads=("1", "0"), layers=("1", "0")
    )
    for found in result.details:
        assert found["setting"] == {"heads": "1", "layers": "1", "rows": "read"}
        assert found["faithfulness"] == 0


# Among methods -----------------------------------------------------------------------------------


@pytest.fixture
def _more_methods(monkeypatch):
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))

    @dataclass(frozen=True)
    class Columns(methods.Method):
        needs: ClassVar = ("attention",)
        layer: int = 0

        def __call__(self, evidence):
            return evidence.attention[self.layer].mean(1).sum(1).expand_as(evidence.pooling)

    @dataclass(frozen=True)
    class Occludes(methods.Method):
        """Needs further forward passes and hidden states."""

        needs: ClassVar = ("hidden", "forwards")

        def __call__(self, evidence):
            forwards = evidence.forwards
            before = forwards(forwards.inputs, torch.arange(evidence.batch))
            assert torch.allclose(before, evidence.logits)
            return evidence.hidden[-1].norm(dim=-1).expand_as(evidence.pooling)

    methods.register("columns")(Columns)
    methods.register("columns_too")(Columns)
    methods.register("occludes")(Occludes)


def rated(model, pixels: Tensor, target: int, scores: Tensor) -> float:
    """The area of one image's scores of patches."""

    def probability(deleted):
        image = pixels.clone()
        for patch in deleted:
            row, column = 8 * (patch // 4), 8 * (patch % 4)
            image[:, row : row + 8, column : column + 8] = 0
        with torch.no_grad():
            return model(image[None]).softmax(1)[0, target].item()

    return area_of(scores, list(range(16)), probability)


@pytest.mark.usefixtures("_more_methods")
@pytest.mark.parametrize("how", [{}, {"rules": "reference"}, {"gradients": "balanced"}])
def test_the_most_faithful_method_wins(how):
    model, pixels = small_vit(), images(32, 32).double()
    explainer, names = Explainer(model), ["columns", "tiba", "occludes"]
    result = explainer.explain(
        pixels, classes=[1, 4], method="search", candidates="methods", methods=names, **how
    )
    alone = {}
    for name in names:
        options = {k: v for k, v in how.items() if k == "rules" or name == "tiba"}
        alone[name] = explainer.explain(pixels, classes=[1, 4], method=name, **options).scores
    winners = set()
    for n, (c, target) in itertools.product(range(3), enumerate((1, 4))):
        areas = {name: rated(model, pixels[n], target, alone[name][n, c]) for name in names}
        best = max(areas, key=areas.get)
        found = result.details[n][c]
        assert found["setting"] == {"method": best}
        assert found["faithfulness"] == pytest.approx(areas[best], rel=1e-8)
        assert torch.allclose(result.scores[n, c], alone[best][n, c], rtol=1e-8)
        winners.add(best)
    assert "tiba" in winners
    assert len(winners) > 1


@pytest.mark.usefixtures("_more_methods")
@pytest.mark.parametrize("names", [("columns", "columns_too"), ("columns_too", "columns")])
def test_of_equal_methods_the_first_wins(names):
    options = {"method": "search", "candidates": "methods", "methods": names}
    explainer, pixels = Explainer(small_vit()), images(32, 32).double()
    for found in explainer.explain(pixels, **options).found:
        assert found["setting"] == {"method": names[0]}
        assert (found["rated"], found["candidates"]) == (2, 2)
    for found in explainer.explain(pixels, budget=1, **options).found:
        assert (found["rated"], found["candidates"]) == (1, 2)


def test_arbitration_on_padded_texts():
    model, inputs = small_bert(), texts()
    result = Explainer(model).explain(
        inputs, method="search", candidates="methods", methods=["tiba"], score="ranked"
    )
    assert torch.allclose(result.scores, Explainer(model).explain(inputs, method="tiba").scores)


# What is wrong or degenerate ---------------------------------------------------------------------


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
        Explainer(HandWrittenViT()).explain(images(32, 32), method="search", **options)


def test_maps_of_different_sizes():
    class Merges(HandWrittenViT):
        def forward(self, image):
            x = self.embed(image.unfold(2, 8, 8).unfold(3, 8, 8).reshape(len(image), 16, -1))
            x = self.blocks[0](x)
            return self.head(self.blocks[1](x[:, ::2] + x[:, 1::2])[:, 0])

    with pytest.raises(WhenceError, match="is not within the one sequence of tokens"):
        Explainer(Merges()).explain(images(32, 32), method="search")


@pytest.mark.parametrize("score", ["area", "ranked"])
def test_a_logit_that_nothing_moves(score):
    model = HandWrittenViT()
    with torch.no_grad():
        model.head.weight.zero_()
    result = Explainer(model).explain(images(32, 32), classes=2, method="search", score=score)
    assert result.scores.isfinite().all()
    for found in itertools.chain(*result.details):
        assert found["faithfulness"] == 0
        assert found["setting"] == {"heads": "mean", "layers": "mean", "rows": "read"}


@pytest.mark.parametrize("score", ["area", "ranked"])
def test_a_text_of_one_token_and_an_empty_image(score):
    ids = torch.tensor([[7], [8]])
    result = Explainer(small_bert()).explain({"input_ids": ids}, method="search", score=score)
    assert result.scores.shape == (2, 1)
    assert result.scores.isfinite().all()
    blank = torch.zeros(2, 3, 32, 32, dtype=torch.float64)
    result = Explainer(small_vit()).explain(blank, method="search", score=score)
    assert result.scores.isfinite().all()
    # Nothing is lost where nothing was.
    for found in result.details:
        assert found["faithfulness"] == pytest.approx(0, abs=1e-12)
        assert found["setting"] == {"heads": "mean", "layers": "mean", "rows": "read"}


@pytest.mark.parametrize(("names", "rules"), [(("gae", "tiba"), "reference"), (("gae",), None)])
def test_the_rules_of_candidates_are_in_the_settings(names, rules):
    case = CASES["ViTForImageClassification-sdpa"]
    options = {"method": "search", "candidates": "methods", "methods": names}
    result = Explainer(built(case)).explain(case.inputs(), rules="reference", **options)
    assert result.settings.get("rules") == rules
