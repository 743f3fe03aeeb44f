"""A quick run of the whole script: rows, their file, tables and picture."""

import json

import pytest

from whence import Explainer

SECTIONS = "--only plain growth long --methods gae --batch 1"
WORDS = f"--quick {SECTIONS} --rounds 2 --device cpu --json".split()


def test_a_quick_run_is_kept_printed_and_drawn(speed, tmp_path, capsys):
    path, picture = tmp_path / "run.json", tmp_path / "growth.png"
    speed.main([*WORDS, str(path)])
    printed = capsys.readouterr().out
    run = json.loads(path.read_text())
    plain = [row["what"] for row in run["rows"] if row["section"] == "plain"]
    assert plain == ["forward", "forward + backward", "gae"]
    varied = {name for row in run["rows"] if row["section"] == "growth" for name in row["setting"]}
    assert varied == {"batch", "tokens", "layers", "classes", "generated tokens"}
    long = [row["variant"] for row in run["rows"] if row["section"] == "long"]
    assert long == ["", "bounded", "not bounded"] * 2  # an image and a text
    for row in run["rows"]:
        assert (row["rounds"], len(row["times"]), row["note"]) == (2, 2, "")
        assert row["fastest"] == pytest.approx(min(row["times"]), abs=1e-4)
    speed.main(["table", str(path)])
    assert capsys.readouterr().out == printed
    speed.main(["picture", str(path), "--out", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_long_inputs_are_explained_with_the_usual_bound_and_without(speed, tmp_path, monkeypatch):
    explain, bounds = Explainer.explain, []

    def note(self, inputs, memory, **request):
        bounds.append(memory)
        return explain(self, inputs, memory=memory, **request)

    monkeypatch.setattr(Explainer, "explain", note)
    words = "--quick --only long --methods gae --rounds 1 --device cpu --json".split()
    speed.main([*words, str(tmp_path / "run.json")])
    assert bounds == [None, 64.0, None, 64.0] * 2  # to warm up, and in the round


def test_a_device_that_is_not_there_is_refused(speed, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        speed.main(["--only", "plain", "--device", "cuda"])
    assert ended.value.code == 2
    assert "no GPU" in capsys.readouterr().err
