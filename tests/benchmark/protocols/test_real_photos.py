"""What the protocols say of a trained ViT-Ti: methods that see the class beat chance."""

import pytest

from whence import benchmark

RUNS = {
    "saco": ("imagenet", 12, "SaCo"),
    "localization": ("pets", 12, "localisation"),
    "gridpg:confidence=0.9": ("imagenet", 40, "GridPG"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("protocol", RUNS)
def test_a_method_that_sees_the_class_beats_chance(data, tmp_path, protocol):
    dataset, limit, metric = RUNS[protocol]
    name, _, option = protocol.partition(":")
    options = dict([option.split("=")]) if option else {}
    model = data / "vit_tiny_in1k_hf"
    methods = "tiba,rollout,random"
    result = benchmark.run(
        name, model, data / dataset, methods, limit=limit, out=tmp_path / "run", **options
    )
    figures = {method: of[metric] for method, of in result.table.to_dict().items()}
    assert figures["tiba"]["verdict"] == "best"
    assert figures["tiba"]["low"] > figures["random"]["value"]
    if name == "gridpg":
        assert figures["rollout"]["value"] == pytest.approx(25), "it sees no class"
        assert figures["random"]["value"] == pytest.approx(25)
