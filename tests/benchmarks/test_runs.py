"""Figures of different runs are never compared."""

import pytest
from benchmarks.timing.runs import Run, load_one_run

ROWS = [
    ("forward", "", [10.0, 10.0, 10.0]),
    ("gae", "plain", [40.0, 44.0, 42.0]),
    ("gae", "compiled", [20.0, 22.0, 21.0]),
]


@pytest.fixture
def files(make_run, tmp_path):
    paths = {name: tmp_path / f"{name}.json" for name in ("first", "again", "second")}
    for name, path in paths.items():
        make_run("bbbb" if name == "second" else "aaaa", ROWS).save(path)
    return paths


def test_different_runs_are_refused_in_a_sentence(files, speed, capsys):
    with pytest.raises(SystemExit) as ended:
        speed.main(["compare", str(files["first"]), str(files["second"])])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "run aaaa" in printed.err
    assert "run bbbb" in printed.err
    assert "Figures of different runs are not compared" in printed.err
    assert "benchmarks/before_after.py" in printed.err


def test_files_of_one_run_are_compared(files, speed, capsys):
    speed.main(["compare", str(files["first"]), str(files["again"])])
    lines = capsys.readouterr().out.splitlines()
    cells = [cell.strip() for cell in lines[-1].split("|")]
    assert cells[2:4] == ["gae", "plain"]
    assert cells[-2] == "0.500 ±0 %"


def test_rows_that_several_files_have_are_kept_once(files):
    assert len(load_one_run([files["first"], files["again"]]).rows) == len(ROWS)


def test_tables_are_made_of_one_file(files, speed):
    with pytest.raises(SystemExit) as ended:
        speed.main(["table", str(files["first"]), str(files["second"])])
    assert ended.value.code == 2


def test_a_run_is_read_as_it_was_written(files, make_run):
    assert Run.load(files["first"]) == make_run("aaaa", ROWS)


@pytest.mark.parametrize("content", ["[]", "{}", "no JSON"])
def test_other_files_are_refused(content, tmp_path, capsys):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(SystemExit) as ended:
        Run.load(path)
    assert ended.value.code == 2
    assert "other.json" in capsys.readouterr().err


def test_every_run_has_a_name_of_its_own():
    first, second = Run.start(), Run.start()
    assert first.run != second.run
    assert {"cpu", "threads", "gpu"} <= first.machine.keys()
    assert {"whence", "torch", "transformers", "commit"} <= first.versions.keys()
