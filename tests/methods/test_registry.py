from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from tests.zoo import HandWrittenViT, make_images
from whence import Explainer, WhenceError, methods
from whence.methods import registry


@pytest.fixture
def _registry(monkeypatch):
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))
    monkeypatch.setattr(registry, "_aliases", dict(registry._aliases))


def test_methods_are_found_by_name_and_alias():
    assert {"whence", "tiba"} <= set(methods.available())
    assert methods.get("transformer_attribution") is methods.get("tiba")


@pytest.mark.usefixtures("_registry")
def test_a_new_method_is_a_dataclass_that_says_what_it_needs():
    @methods.register("raw")
    @dataclass(frozen=True)
    class Raw(methods.Method):
        needs: ClassVar = ("attention",)
        layer: int = -1

        def __call__(self, evidence):
            rows = evidence.attention[self.layer].mean(1)
            return (evidence.pooling[..., None, :] @ rows)[..., 0, :]

    result = Explainer(HandWrittenViT()).explain(make_images(32, 32), method="raw", layer=0)
    kept = Explainer(HandWrittenViT()).explain(
        make_images(32, 32), method="raw", keep_evidence=True
    )
    assert result.settings == {"layer": 0}
    assert torch.equal(kept.scores, kept.evidence.attention[-1].mean(1)[:, 0, 1:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "tiab"}, r"no method 'tiab'. Did you mean 'tiba'\? Available: .*tiba"),
        ({"method": 5}, "no method '5'. Available: .*tiba"),
        (
            {"begin": 1},
            r"'whence' has no option 'begin'. Its options: reading, start_layer, gradients",
        ),
        ({"start_layer": "1"}, r"'start_layer' of method 'whence' must be a whole number, not '1'"),
        ({"start_layer": True}, r"must be a whole number, not True"),
        ({"method": "tiba", "normalize_rows": 1}, r"must be true or false, not 1"),
        ({"rules": "stale"}, r"no rule set 'stale'. Available: stable, reference, paper"),
        ({"rules": ["stable"]}, r"no rule set \['stable'\]"),
    ],
)
def test_wrong_requests_say_what_there_is(options, message):
    with pytest.raises(WhenceError, match=message):
        Explainer(HandWrittenViT()).explain(make_images(32, 32), **options)


@pytest.mark.usefixtures("_registry")
def test_what_is_not_a_method_is_refused():
    with pytest.raises(TypeError, match="must be a dataclass"):
        methods.register("plain")(type("Plain", (), {"needs": ()}))
    greedy = dataclass(type("Greedy", (methods.Method,), {"needs": ("everything",)}))
    with pytest.raises(TypeError, match=r"needs \['everything'\]"):
        methods.register("greedy")(greedy)


@pytest.mark.usefixtures("_registry")
def test_what_a_user_typed_becomes_the_value_of_an_option():
    @methods.register("typed")
    @dataclass(frozen=True)
    class Typed(methods.Method):
        names: tuple[str, ...] = ()
        sizes: tuple[float, ...] = ()
        layers: tuple[int, ...] = ()

    def typed(option: str, text: str):
        return methods.parse_option("typed", option, text)

    assert typed("names", "mean") == ("mean",)
    assert typed("names", "gae, tiba") == ("gae", "tiba")
    assert typed("names", "mean,3") == ("mean", "3")
    assert typed("sizes", "0.1,0.25,1") == (0.1, 0.25, 1)
    assert typed("layers", "1,-2") == (1, -2)
    with pytest.raises(WhenceError, match=r"must be whole numbers, not '1,two'"):
        typed("layers", "1,two")


def test_numbers_of_numpy_are_numbers(tmp_path):
    result = Explainer(HandWrittenViT()).explain(make_images(32, 32), start_layer=np.int64(1))
    assert result.settings["start_layer"] == 1
    result.save(tmp_path / "one.safetensors")
    built = methods.build("smoothgrad", {"noise": np.float32(0.5), "samples": np.int32(3)})
    assert (type(built.noise), type(built.samples)) == (float, int)


def test_an_alias_is_recorded_by_its_name():
    result = Explainer(HandWrittenViT()).explain(
        make_images(32, 32), method="transformer_attribution"
    )
    assert result.method == "tiba"


def test_scores_that_are_not_finite_are_an_error():
    with pytest.raises(WhenceError, match=r"'occlusion' computed NaN or infinite scores.*double"):
        Explainer(HandWrittenViT()).explain(make_images(32, 32), method="occlusion", baseline=1e38)
