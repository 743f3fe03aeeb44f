"""Result files and their summary."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tests.cli.commands import list_files, read_summary, run_explain
from tests.saved import make_photo, save_image_model


def test_the_summary(two_photos):
    photos = read_summary("one.png", "two.jpg", "--top", "2")
    assert [entry["name"] for entry in photos] == ["one", "two"]
    for entry in photos:
        assert entry["kind"] == "image"
        assert entry["files"]["figure"] == f"{entry['name']}.png"
        assert len(entry["classes"]) == 2
        one = entry["classes"][0]
        assert one["name"] in ("cat", "dog", "crane")
        assert 0 < one["probability"] < 1
        assert {"row", "column", "score"} == set(one["top"][0])
        assert all({"center", "area", "evidence"} == set(region) for region in one["regions"])
        assert entry["error"] is None
    (text,) = read_summary("a good film", "--target", "positive")
    assert text["classes"][0]["name"] == "positive"
    assert {top["word"] for top in text["classes"][0]["top"]} == {"a", "good", "film"}
    folder = json.loads((two_photos / "whence-out" / "summary.json").read_text())
    assert [entry["name"] for entry in folder["inputs"]] == ["one", "two", "a-good-film"]


def test_a_folder_that_turns_unwritable(two_photos, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    assert "No space left on device" in run_explain("one.png", code=2).stderr


def test_bad_inputs_are_named_and_the_rest_goes_on(two_photos):
    (two_photos / "fake.jpg").write_text("not a photo")
    content = (two_photos / "two.jpg").read_bytes()
    (two_photos / "cut.jpg").write_bytes(content[: len(content) // 2])
    (two_photos / "empty.txt").write_text("")
    result = run_explain(
        "none.jpg", "fake.jpg", "one.png", "cut.jpg", "empty.txt", "good film", code=1
    )
    for name in ("none.jpg", "fake.jpg", "cut.jpg", "empty.txt"):
        assert result.stderr.count(f"{name}: ") == 1
    assert len(result.stderr.splitlines()) == 4
    assert list_files(two_photos / "whence-out") == [
        *("good-film.html", "good-film.safetensors", "one.png", "one.safetensors", "summary.json")
    ]
    entries = json.loads((two_photos / "whence-out" / "summary.json").read_text())["inputs"]
    assert [bool(entry["error"]) for entry in entries] == [True, True, False, True, True, False]


def test_nothing_is_written_over_without_force(two_photos):
    run_explain("one.png")
    before = (two_photos / "whence-out" / "one.safetensors").stat().st_mtime_ns
    result = run_explain("two.jpg", "one.png", "--target", "dog", code=2)
    assert "one.png' and 1 more exist already. Give --force" in result.stderr
    assert list_files(two_photos / "whence-out") == ["one.png", "one.safetensors", "summary.json"]
    assert (two_photos / "whence-out" / "one.safetensors").stat().st_mtime_ns == before
    (entry,) = read_summary("one.png", "--target", "dog", "--force")
    assert entry["classes"][0]["name"] == "dog"
    assert len(json.loads((two_photos / "whence-out" / "summary.json").read_text())["inputs"]) == 1


def test_a_link_that_is_an_input_is_never_written_over(two_photos):
    make_photo().save("three.jpg")
    (two_photos / "linked").mkdir()
    link = two_photos / "linked" / "three.jpg"
    link.symlink_to(two_photos / "three.jpg")
    arguments = ("linked/three.jpg", "--format", "jpg", "--out", "linked", "--force")
    assert "over the input" in run_explain(*arguments, code=2).stderr
    assert link.is_symlink()


@pytest.mark.parametrize("form", ["png", "jpg"])
def test_an_input_is_never_written_over(form, two_photos):
    make_photo().save(f"three.{form}")
    before = (two_photos / f"three.{form}").read_bytes()
    arguments = (f"three.{form}", "--format", form, "--out", ".", "--force")
    result = run_explain(*arguments, code=2)
    assert f"over the input 'three.{form}'" in result.stderr
    assert (two_photos / f"three.{form}").read_bytes() == before
    other = "jpg" if form == "png" else "png"
    run_explain(f"three.{form}", "--format", other, "--out", ".")
    assert (two_photos / f"three.{other}").is_file()


def test_a_summary_of_someone_else_is_not_written_over(two_photos):
    (two_photos / "out").mkdir()
    (two_photos / "out" / "summary.json").write_text("[1]")
    assert "whence did not write it" in run_explain("one.png", "--out", "out", code=2).stderr
    assert (two_photos / "out" / "summary.json").read_text() == "[1]"
    run_explain("one.png", "--out", "out", "--force")


def test_inputs_of_the_same_name(two_photos):
    for folder in ("a", "b"):
        (two_photos / folder).mkdir()
        make_photo().save(two_photos / folder / "One.png")
    (two_photos / "one.txt").write_text("good")
    entries = read_summary("one.png", "a", "b", "one.txt")
    assert [entry["name"] for entry in entries] == ["one", "One-2", "One-3", "one-4"]


def test_an_interruption_leaves_finished_results_and_their_summary(two_photos, monkeypatch):
    from whence.models import LoadedModel

    explain = LoadedModel.explain

    def interrupted(self, prepared, **request):
        if prepared.photos[0].crop.size == (30, 50):
            raise KeyboardInterrupt
        return explain(self, prepared, **request)

    monkeypatch.setattr(LoadedModel, "explain", interrupted)
    run_explain("one.png", "two.jpg", "--batch", "1", code=130)
    assert list_files(two_photos / "whence-out") == ["one.png", "one.safetensors", "summary.json"]
    (entry,) = json.loads((two_photos / "whence-out" / "summary.json").read_text())["inputs"]
    assert entry["name"] == "one"


@pytest.fixture
def photo_folder(two_photos):
    """Some photos of several sizes, one that is damaged, and a file that is none."""
    folder = two_photos / "photos"
    folder.mkdir()
    for number in range(9):
        make_photo(40 + 4 * number, 50).save(folder / f"{number}.png")
    make_photo().save(folder / "comment.jpg", comment=b"as found")
    (folder / "broken.jpg").write_text("no photo")
    (folder / "table.xyz").write_text("1")
    return folder


def use_processes(monkeypatch, on_gpu):
    """Let few photos be many, on a machine of four CPUs."""
    for module in ("batches", "results"):
        monkeypatch.setattr(f"whence.pipeline.{module}.MANY", 4)
        monkeypatch.setattr(f"whence.pipeline.{module}.count_cpus", lambda: 4)
    if on_gpu:
        gpu = torch.device("cuda")
        monkeypatch.setattr("whence.pipeline.results.find_device", lambda _: gpu)


def read_result(file):
    """All of a file; of a safetensors file not the order of its header, which is random."""
    if file.suffix != ".safetensors":
        return file.read_bytes()
    with safe_open(file, "pt") as opened:
        tensors = {name: opened.get_tensor(name).tolist() for name in opened.keys()}  # noqa: SIM118
        return opened.metadata(), tensors, file.stat().st_size


@pytest.mark.parametrize(("format", "on_gpu"), [("png", True), ("html", False)])
def test_processes_write_the_same_files_in_the_same_order(
    photo_folder, monkeypatch, tmp_path, format, on_gpu
):
    options = ("photos", "--batch", "3", "--format", format, "--top", "2", "--out", "out")
    alone = run_explain(*options, code=1)
    shutil.move("out", tmp_path / "alone")
    use_processes(monkeypatch, on_gpu)
    here = []
    monkeypatch.setattr("whence.pipeline.results._write_files", lambda *_: here.append(1))
    beside = run_explain(*options, code=1)
    assert here == []  # all was written elsewhere
    assert (beside.stdout, beside.stderr) == (alone.stdout, alone.stderr)
    assert list_files(tmp_path / "alone") == list_files(Path("out"))
    assert len(list_files(Path("out"))) == 21
    for file in (tmp_path / "alone").iterdir():
        assert read_result(file) == read_result(Path("out") / file.name), file.name


def test_an_interruption_of_processes_leaves_finished_results(photo_folder, monkeypatch):
    from whence.models import LoadedModel

    explain, calls = LoadedModel.explain, []

    def interrupted(self, prepared, **request):
        calls.append(prepared)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return explain(self, prepared, **request)

    monkeypatch.setattr(LoadedModel, "explain", interrupted)
    use_processes(monkeypatch, on_gpu=True)
    run_explain("photos", "--batch", "3", "--out", "out", code=130)
    entries = json.loads(Path("out/summary.json").read_text())["inputs"]
    files = [file for entry in entries for file in entry["files"].values()]
    assert sorted([*files, "summary.json"]) == list_files(Path("out"))


def test_a_failure_to_write_in_a_process_is_that_of_the_input(photo_folder, monkeypatch):
    use_processes(monkeypatch, on_gpu=True)
    Path("out/3.png").mkdir(parents=True)  # where a figure cannot go
    result = run_explain("photos", "--out", "out", "--force", code=1)
    assert "3.png: The folder 'out' cannot be written to: Is a directory." in result.stderr
    entries = json.loads(Path("out/summary.json").read_text())["inputs"]
    assert sum(entry["error"] is None for entry in entries) == 9


def test_a_failed_input_leaves_no_earlier_result_of_its_name(two_photos):
    run_explain("one.png")
    (two_photos / "one.png").write_text("no photo")
    run_explain("one.png", "--force", code=1)
    assert list_files(two_photos / "whence-out") == ["summary.json"]


def test_a_long_output_name_is_an_error(two_photos):
    assert "cannot be written to" in run_explain("one.png", "--out", "x" * 300, code=2).stderr


def test_a_file_name_that_is_not_utf_8(two_photos):
    name = b"bad\xff.png"
    try:
        make_photo().save(name.decode("utf-8", "surrogateescape"), format="PNG")
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    (entry,) = read_summary(name.decode("utf-8", "surrogateescape"))
    assert entry["input"] == "bad\ufffd.png"
    assert json.loads((two_photos / "whence-out" / "summary.json").read_text(encoding="utf-8"))


def test_one_logit_has_no_probability(two_photos, tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    folder = save_image_model(tmp_path_factory.mktemp("regression"))
    model = transformers.AutoModelForImageClassification.from_pretrained(folder)
    model.classifier = torch.nn.Linear(model.classifier.in_features, 1)
    model.config.num_labels = 1
    model.float().save_pretrained(folder)
    (entry,) = read_summary("one.png", "--model", folder)
    assert entry["classes"][0]["probability"] is None
    assert "%" not in entry["sentence"]


def test_words_are_shown_as_they_were_written(two_photos):
    (entry,) = read_summary("A WONDERFUL film", "--out", "other")
    shown = {top["word"] for top in entry["classes"][0]["top"]}
    assert shown <= {"A", "WONDERFUL", "film"}
    assert "WONDERFUL" in shown
