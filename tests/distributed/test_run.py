"""Runs over many inputs on one machine: each has one row, however often the run was killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import whence
from tests.distributed.conftest import set_worker_path
from tests.distributed.inputs import make_settings, read_rows, write_photos
from whence.distributed import ResultFolder
from whence.distributed.run import explain_locally, run_many
from whence.distributed.sources import open_recorded_source
from whence.errors import WhenceError

pa = pytest.importorskip("pyarrow")


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "photos"


def test_photos_of_all_kinds_have_the_scores_of_one_by_one(folder, image_model, tmp_path):
    names = write_photos(folder, 20, broken=(3, 10))
    (folder / "below").mkdir()
    (folder / names[0]).rename(folder / "below" / names[0])
    (folder / "labels.json").write_text("{}")
    lines: list[str] = []
    summary = run_many(
        [str(folder)], make_settings(image_model), tmp_path / "out", tell=lines.append
    )
    assert (summary.inputs, summary.explained, summary.failed) == (20, 18, 2)
    assert summary.is_complete
    assert lines == ["1 other file was left out: only photos are explained."]
    rows = read_rows(tmp_path / "out")
    assert set(rows) == {f"below/{names[0]}", *names[1:]}
    source = open_recorded_source(ResultFolder(tmp_path / "out"))
    assert [item.id for item in source.iterate_items()] == list(rows)
    assert next(source.find_items([names[1]])).read().size == (41, 31)
    errors = {name: row["error"] for name, row in rows.items() if row["error"]}
    assert set(errors) == {names[3], names[10]}
    assert all(str(tmp_path) not in error for error in errors.values())
    assert sorted(name for kind in summary.errors for name in kind.ids) == sorted(errors)
    for name in (f"below/{names[0]}", *names[1:3], *names[4:10]):
        alone = whence.explain(folder / name, model=image_model, method="rollout")
        again = ResultFolder(tmp_path / "out").read_explanation(rows[name])
        np.testing.assert_allclose(again.numpy(), alone.numpy(), atol=1e-6)
        assert again.target.tolist() == alone.target.tolist()
        assert again.classes()[0].probability == pytest.approx(alone.classes()[0].probability)
        assert (again.grid, again.image_size) == (alone.grid, alone.image_size)
        assert rows[name]["name"] == alone.classes()[0].name


def test_a_run_goes_on_and_new_files_are_added(folder, image_model, tmp_path):
    write_photos(folder, 11)
    settings, out = make_settings(image_model), tmp_path / "out"

    class PowerCutError(Exception):
        pass

    def stop(job):
        write = job.folder.write_part

        def write_twice(table):
            if len(job.folder.list_parts()) == 2:
                raise PowerCutError
            return write(table)

        job.folder.write_part = write_twice
        explain_locally(job)

    with pytest.raises(PowerCutError):
        run_many([str(folder)], settings, out, engine=stop)
    assert len(read_rows(out)) == 8
    assert ResultFolder(out).run["state"] == "running"
    write_photos(folder, 12)
    lines: list[str] = []
    summary = run_many([str(folder)], settings, out, tell=lines.append)
    assert lines == ["8 of 12 were done."]
    assert (summary.inputs, summary.explained, summary.parts) == (12, 12, 3)
    assert len(read_rows(out)) == 12
    (folder / "0000-jpeg.jpg").unlink()
    summary = run_many([str(folder)], settings, out)
    assert (summary.inputs, summary.gone, summary.is_complete) == (11, 1, True)


def test_what_was_explained_is_kept_when_interrupted(folder, image_model, tmp_path):
    write_photos(folder, 6)

    def interrupt(job):
        left = [1, 1, 1]

        def advance(_count):
            if not left:
                raise KeyboardInterrupt
            left.pop()

        explain_locally(type(job)(**{**vars(job), "advance": advance}))

    settings = make_settings(image_model, part_rows=100)
    with pytest.raises(KeyboardInterrupt):
        run_many([str(folder)], settings, tmp_path / "out", engine=interrupt)
    assert len(read_rows(tmp_path / "out")) == 4


def test_a_run_that_cannot_go_on_says_that_rows_are_kept(image_model, tmp_path, photo_bytes):
    rows = [{"id": n, "image": photo_bytes} for n in range(10)]
    pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")

    def fill(job):
        write = job.folder.write_part

        def write_once(table):
            if job.folder.list_parts():
                raise WhenceError("The folder cannot be written to: No space left on device.")
            return write(table)

        job.folder.write_part = write_once
        explain_locally(job)

    out = tmp_path / "out"
    with pytest.raises(WhenceError, match=r"No space left on device\. Finished rows are kept; the"):
        run_many([str(tmp_path / "t.parquet")], make_settings(image_model), out, engine=fill)
    assert set(read_rows(out)) == set("0123")
    run_many([str(tmp_path / "t.parquet")], make_settings(image_model), out)
    assert set(read_rows(out)) == set("0123456789")


@pytest.fixture
def photo_bytes(folder) -> bytes:
    (name,) = write_photos(folder, 1)
    return (folder / name).read_bytes()


def test_another_method_is_refused_and_force_starts_anew(folder, image_model, tmp_path):
    write_photos(folder, 2)
    out = tmp_path / "out"
    run_many([str(folder)], make_settings(image_model), out)
    before = read_rows(out)
    for other in (
        make_settings(image_model, "raw_attention"),
        make_settings(image_model, scores="float16"),
        make_settings(image_model, top=2),
        make_settings(),  # another model
    ):
        with pytest.raises(WhenceError, match="holds results that were made otherwise"):
            run_many([str(folder)], other, out)
    assert read_rows(out) == before
    (out / "notes.txt").write_text("mine")
    run_many([str(folder)], make_settings(image_model, "raw_attention"), out, force=True)
    assert (out / "notes.txt").read_text() == "mine"
    assert read_rows(out).keys() == before.keys()
    assert read_rows(out)["0001-png.png"]["scores"] != before["0001-png.png"]["scores"]


def test_inputs_that_failed_are_explained_again(folder, image_model, tmp_path):
    names = write_photos(folder, 10, broken=(1, 2, 8))
    settings, out = make_settings(image_model), tmp_path / "out"
    assert run_many([str(folder)], settings, out).failed == 3
    before = read_rows(out)
    write_photos(folder, 10, broken=(8,))
    lines: list[str] = []
    summary = run_many([str(folder)], settings, out, retry=True, tell=lines.append)
    assert lines == ["3 inputs that failed are explained again.", "7 of 10 were done."]
    assert (summary.explained, summary.failed, summary.is_complete) == (9, 1, True)
    rows = read_rows(out)
    assert set(rows) == set(names)
    assert {name for name, row in rows.items() if row["error"]} == {names[8]}
    assert all(rows[name] == row for name, row in before.items() if not row["error"])
    assert ResultFolder(out).clean() == []


@pytest.mark.parametrize("step", range(4))
def test_dropping_rows_may_be_killed_anywhere(folder, image_model, tmp_path, step, monkeypatch):
    from whence.distributed.addresses import Location

    names = write_photos(folder, 4, broken=(1,))
    settings, out = make_settings(image_model), tmp_path / "out"
    run_many([str(folder)], settings, out)
    left = [None] * step
    for name in ("sync", "delete", "move"):
        do = getattr(Location, name)

        def fail(self, *paths, do=do):
            if not left:
                raise KeyboardInterrupt
            left.pop()
            do(self, *paths)

        monkeypatch.setattr(Location, name, fail)
    with pytest.raises(KeyboardInterrupt):
        ResultFolder(out).drop_failed()
    monkeypatch.undo()
    summary = run_many([str(folder)], settings, out)
    assert summary.is_complete
    assert set(read_rows(out)) == set(names)


def test_ids_that_come_twice_are_refused_or_told_at_the_end(text_model, tmp_path):
    table, out = tmp_path / "t.jsonl", tmp_path / "out"
    rows = [{"id": name, "text": "a good film"} for name in "abcb"]
    table.write_text("\n".join(map(json.dumps, rows)))
    settings = make_settings(text_model)
    with pytest.raises(WhenceError, match="Several rows have the same id, such as 'b'"):
        run_many([str(table)], settings, out)
    assert not out.exists()
    summary = run_many([table.as_uri()], settings, out)  # there, ids are not read beforehand
    assert (summary.repeated, summary.repeated_count, summary.is_complete) == (["b"], 1, False)
    assert ResultFolder(out).run["state"] == "incomplete"


def test_several_targets_and_half_precision(folder, image_model, tmp_path):
    (name,) = write_photos(folder, 1)
    settings = make_settings(image_model, "gae", top=2, scores="float16")
    run_many([str(folder)], settings, tmp_path / "out")
    row = read_rows(tmp_path / "out")[name]
    alone = whence.explain(folder / name, model=image_model, method="gae", classes=2)
    again = ResultFolder(tmp_path / "out").read_explanation(row)
    assert again.scores.shape == alone.scores.shape
    np.testing.assert_allclose(again.numpy(), alone.numpy(), rtol=1e-3, atol=1e-7)
    assert row["target"] == alone.target[0].tolist()
    assert row["name"] == alone.target_names[0]
    part = pa.parquet.read_table(tmp_path / "out" / ResultFolder(tmp_path / "out").list_parts()[0])
    assert part.schema.field("scores").type == pa.list_(pa.float16(), alone.scores[0].numel())


def test_texts_have_their_tokens_and_words(text_model, tmp_path):
    texts = {"a.txt": "a good film", "b.txt": "the film is not good ."}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "empty.txt").write_text(" ")
    run_many([str(tmp_path / "*.txt")], make_settings(text_model, "tiba"), tmp_path / "out")
    rows = read_rows(tmp_path / "out")
    assert rows["empty.txt"]["error"] == "The text is empty."
    for name, text in texts.items():
        alone = whence.explain(text, model=text_model, method="tiba")
        assert rows[name]["tokens"] == alone.tokens.strings[0]
        assert rows[name]["grid"] == []
        np.testing.assert_allclose(rows[name]["scores"], alone.scores[0], atol=1e-6)
        again = ResultFolder(tmp_path / "out").read_explanation(rows[name])
        assert [word for word, _ in again.words()] == [word for word, _ in alone.words()]
        np.testing.assert_allclose(*[[s for _, s in one.words()] for one in (again, alone)], 1e-5)


def test_wrong_requests_are_refused_before_anything_is_written(folder, image_model, tmp_path):
    out = tmp_path / "out"

    def refuse(match, *arguments, **options):
        settings = make_settings(options.pop("model", image_model), **options)
        with pytest.raises(WhenceError, match=match):
            run_many([str(one) for one in arguments], settings, out)
        assert not (out / "_whence" / "run.json").exists()

    folder.mkdir()
    refuse("holds no photo and no text file", folder)
    refuse(r"photoz' is not there, or may not be read\. Did you mean", tmp_path / "photoz")
    (folder / "a.txt").write_text("a good film")
    refuse("holds no photos", folder)
    (folder / "bad.jpg").write_bytes(b"x")
    refuse("can be read. The first, 'bad.jpg': The photo is not an image", folder)
    refuse("hold 1 photo and 1 text file, such as 'a.txt'; name a --model", folder, model=None)
    write_photos(folder, 1)
    refuse("no class", folder, targets=("zebra",))
    refuse("no method", folder, method="nothing")
    refuse("--column and --id are for tables", folder, id="key")
    results = tmp_path / "results" / "_whence"
    results.mkdir(parents=True)
    (results / "run.json").write_text("{}")
    refuse("holds results of whence, not inputs", results.parent)
    out.mkdir()
    (out / "mine.txt").write_text("x")
    refuse("holds files that are not of a run, such as 'mine.txt'", folder)


def test_a_method_that_fails_on_all_inputs_is_refused(folder, image_model, tmp_path, monkeypatch):
    from whence.models import LoadedModel

    def fail(*_args, **_request):
        raise RuntimeError("no luck")

    write_photos(folder, 3)
    monkeypatch.setattr(LoadedModel, "explain", fail)
    with pytest.raises(WhenceError, match="Model or method failed: RuntimeError: no luck"):
        run_many([str(folder)], make_settings(image_model), tmp_path / "out")
    assert not (tmp_path / "out").exists()


_KILLED = """
import json, sys, time
from tests.distributed.inputs import make_settings
from whence.distributed.folder import ResultFolder
from whence.distributed.run import run_many
from whence.distributed import row_explainer
folder, model, out = sys.argv[1:]
write = ResultFolder.write_part
def write_slowly(self, table):
    write(self, table)
    time.sleep(0.2)
ResultFolder.write_part = write_slowly
run_many([folder], make_settings(model, threads=2), out)
"""


@pytest.mark.slow
def test_a_killed_process_loses_only_what_it_was_doing(folder, image_model, tmp_path):
    names = write_photos(folder, 60, broken=(7, 30))
    out = tmp_path / "out"
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    set_worker_path(environment)
    command = [sys.executable, "-c", _KILLED, folder, image_model, out]
    process = subprocess.Popen(list(map(str, command)), env=environment)
    checkpoints = out / "_whence" / "checkpoint"
    limit = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < limit:
        if checkpoints.exists() and len(list(checkpoints.glob("*.parquet"))) >= 3:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert json.loads((out / "_whence" / "run.json").read_text())["state"] == "running"
    assert 0 < len(read_rows(out)) < 60
    summary = run_many([str(folder)], make_settings(image_model), out)
    assert (summary.inputs, summary.explained, summary.failed) == (60, 58, 2)
    assert set(read_rows(out)) == set(names)
