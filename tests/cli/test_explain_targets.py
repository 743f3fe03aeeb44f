"""`whence explain`: one class rather than another, and an output for each token."""

import pytest
import torch

from tests.cli.commands import read_summary, run_explain
from tests.saved import save_text_model
from whence import Explainer, Explanation, targets
from whence.models import load


def test_one_class_rather_than_another(two_photos):
    (entry,) = read_summary("a good film", "--target", "positive", "--against", "negative")
    (one,) = entry["classes"]
    assert one["name"] == "positive rather than negative"
    found = Explanation.load(two_photos / "whence-out" / "a-good-film.safetensors")
    loaded = load(None, "text")
    prepared = loaded.prepare(["a good film"])
    own = Explainer(loaded.model).explain(prepared.inputs, lambda o, _: o.logits @ _difference())
    assert torch.allclose(found.scores, own.scores, rtol=1e-4)


def _difference() -> torch.Tensor:
    return torch.tensor([-1.0, 1.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--against", "awful"], "There is no class 'awful'. The model has 'negative'"),
        (["--target", "positive", "--against", "positive"], "both are class 1 here, 'positive'"),
        (["--position", "1", "--top", "2"], "either --position or --top"),
        (["--position", "1"], "Tokens and spans are targets of models"),
    ],
)
def test_targets_that_cannot_be(two_photos, arguments, message):
    failed = run_explain("a good film", *arguments, code=2)
    assert message in " ".join(failed.stderr.split())


@pytest.mark.parametrize("task", ["MaskedLM", "TokenClassification"])
def test_models_with_an_output_for_each_token(two_photos, tmp_path, task):
    folder = save_text_model(tmp_path, task)
    (entry,) = read_summary("a good film", "--model", folder, "--position", 2)
    loaded = load(folder)
    inputs = loaded.prepare(["a good film"]).inputs
    index = int(loaded.model(**inputs).logits[0, 2].argmax())
    expected = loaded.explainer.explain(inputs, targets.token(2, index))
    assert [one["name"] for one in entry["classes"]] == expected.target_names
    found = Explanation.load(two_photos / "whence-out" / "a-good-film.safetensors")
    assert torch.allclose(found.scores, expected.scores, rtol=1e-4)
    word = "bad" if task == "MaskedLM" else "negative"
    (entry,) = read_summary(
        *("a good film", "--model", folder, "--position", 2, "--target", word, "--force")
    )
    assert entry["classes"][0]["name"] == word
    failed = run_explain("a good film", "--model", folder, "--force", code=2)
    assert "--position" in failed.stderr
