"""Settings of runs: what results depend on, and what is proven before a run."""

import dataclasses
import pickle

import pytest
import torch

from tests.distributed.inputs import make_settings
from tests.saved import make_photo
from whence.distributed import Item, RowExplainer, RunDescription, RunSettings, describe_run
from whence.errors import WhenceError
from whence.methods import MethodSpecification
from whence.models.image_preprocessing import stack_photos
from whence.models.loaded import LoadedModel, PreparedBatch

pytest.importorskip("pyarrow")


def test_settings_and_descriptions_are_plain_data(image_model, vit, tmp_path, monkeypatch):
    settings = make_settings(image_model, targets=("cat",), scores="float16", threads=3)
    assert RunSettings.from_json(settings.to_json()) == settings
    assert pickle.loads(pickle.dumps(settings)) == settings
    description = describe_run(settings, vit)
    again = RunDescription.from_json(description.to_json())
    assert (again.fingerprint, again.form, again.kind) == (
        description.fingerprint,
        description.form,
        description.kind,
    )
    monkeypatch.chdir(image_model.parent)
    relative = make_settings(image_model.name)
    assert relative.to_json()["explain"]["model"] == str(image_model)


def test_the_fingerprint_depends_on_all_that_scores_depend_on(image_model, vit, monkeypatch):
    settings = make_settings(image_model)
    how = settings.explain

    def find(settings=settings, loaded=vit, **changes) -> str:
        explain = dataclasses.replace(settings.explain, **changes)
        return describe_run(dataclasses.replace(settings, explain=explain), loaded).fingerprint

    known = find()
    assert find(batch=3, memory=1.0, compile=True) == known  # these change no score
    options = MethodSpecification("rollout", "rollout", {"start_layer": 1})
    others = [
        find(methods=(options,)),
        find(methods=(dataclasses.replace(how.methods[0], rules="reference"),)),
        find(targets=("0",)),
        find(top=2),
        find(against="1"),
        find(verify=True),
        find(dataclasses.replace(settings, scores="float16")),
        find(loaded=dataclasses.replace(vit, class_names={0: "a", 1: "b", 2: "c"})),
    ]
    with monkeypatch.context() as patch:
        patch.setattr("whence.distributed.settings.__version__", "0.0")
        others.append(find())
        patch.undo()
        patch.setattr(vit.preprocessor.processor, "image_mean", [0.1, 0.2, 0.3])
        others.append(find())
    with torch.no_grad():
        weight = next(vit.model.parameters())
        kept = weight.clone()
        weight += 1e-3
        others.append(find())
        weight.copy_(kept)
    assert len({known, *others}) == 1 + len(others)
    assert find() == known


def test_scores_have_a_fixed_size_only_where_photos_do(image_model, vit):
    settings = make_settings(image_model)
    assert describe_run(settings, vit).form.units == 16

    def keep_size(images) -> PreparedBatch:
        size = (32, 32) if images[0].size[0] < 100 and images[0].size[1] < 100 else (64, 32)
        prepared = vit.preprocessor([image.resize(size) for image in images])
        pixels = [torch.zeros(3, *reversed(size)) for _ in images]
        return stack_photos(pixels, prepared.photos)

    loose = dataclasses.replace(vit, preprocessor=keep_size)
    assert describe_run(settings, loose).form.units is None


def test_the_first_inputs_are_tried_until_one_works(image_model, vit, monkeypatch):
    settings = make_settings(image_model)
    tried = []

    def read(number, works):
        def inner():
            tried.append(number)
            if not works:
                raise WhenceError("The photo is damaged.")
            return make_photo(seed=number)

        return Item(str(number), inner)

    describe_run(settings, vit, [read(0, False), read(1, True), read(2, True)])
    assert tried == [0, 1]
    with pytest.raises(WhenceError, match="None of the first 2 inputs can be read"):
        describe_run(settings, vit, [read(0, False), read(1, False)])

    def fail(*_args, **_request):
        raise WhenceError("The method does not suit.")

    monkeypatch.setattr(LoadedModel, "explain", fail)
    tried.clear()
    with pytest.raises(WhenceError, match="does not suit"):
        describe_run(settings, vit, [read(number, True) for number in range(50)])
    assert len(tried) == 20


def test_a_worker_with_other_weights_is_refused(image_model, vit):
    settings = make_settings(image_model)
    description = describe_run(settings, vit)
    depends_on = {**description.depends_on, "model weights": "0" * 64}
    other = dataclasses.replace(description, depends_on=depends_on)
    with pytest.raises(WhenceError, match="has other weights here than where the run was started"):
        RowExplainer(settings, other)
    assert RowExplainer(settings, description).description is description


def test_a_warning_is_given_once_for_all_batches(image_model, vit):
    settings = make_settings(image_model)
    method = MethodSpecification("rollout", "rollout", rules="reference")
    how = dataclasses.replace(settings.explain, methods=(method,))
    explainer = RowExplainer(dataclasses.replace(settings, explain=how), loaded=vit)
    items = [Item(str(n), lambda n=n: make_photo(seed=n)) for n in range(9)]
    with pytest.warns(UserWarning, match="propagates no relevance") as given:
        explainer.explain(items)
    assert len(given) == 1


@pytest.mark.parametrize("threads", [1, 3])
def test_rows_come_in_the_order_of_inputs(image_model, vit, threads):
    def fail():
        raise ValueError("odd")

    items = [Item(str(n), lambda n=n: make_photo(seed=n)) for n in range(11)]
    items[4] = Item("4", fail)
    explainer = RowExplainer(make_settings(image_model, threads=threads), loaded=vit)
    rows = list(explainer.explain_rows(iter(items)))
    assert [row["id"] for row in rows] == [item.id for item in items]
    assert rows[4]["error"] == "It cannot be read: ValueError: odd."
    table = explainer.explain(items)
    assert table["id"].to_pylist() == [item.id for item in items]
    for row, other in zip(rows, table["scores"].to_pylist(), strict=True):
        if not row["error"]:
            assert other == pytest.approx(row["scores"].tolist())
