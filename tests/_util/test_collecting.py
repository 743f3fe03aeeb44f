"""Python's collector is held off while explanations run, and left as it was found."""

import gc
import subprocess
import sys
import threading

import pytest

from tests.zoo import CASES, build_model
from whence import Explainer
from whence._util import collecting
from whence._util.collecting import hold_off_collection, hold_off_while_loading, run_one_command
from whence.errors import WhenceError
from whence.models import load


@pytest.fixture(autouse=True)
def collector():
    was_on = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was_on else gc.disable)()


@pytest.mark.parametrize("is_on", [True, False])
def test_it_is_off_in_the_block_and_then_as_it_was(is_on):
    (gc.enable if is_on else gc.disable)()
    with hold_off_collection(), hold_off_collection():
        assert not gc.isenabled()
    assert gc.isenabled() == is_on
    with pytest.raises(RuntimeError), hold_off_collection():
        raise RuntimeError
    assert gc.isenabled() == is_on


def test_the_last_thread_puts_it_back():
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with hold_off_collection():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    with hold_off_collection():
        pass
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


@pytest.mark.parametrize(("method", "is_on"), [("gae", False), ("occlusion", True)])
def test_it_is_off_while_one_pass_is_explained_but_not_for_many(method, is_on):
    case = CASES["ViTForImageClassification-sdpa"]
    model, seen = build_model(case), []
    model.register_forward_hook(lambda *_: seen.append(gc.isenabled()))
    Explainer(model).explain(case.inputs(), method=method)
    assert seen[-1] == is_on
    assert gc.isenabled()


def test_it_is_off_while_a_model_is_loaded(tmp_path, monkeypatch):
    seen = []

    def note(name):
        seen.append(gc.isenabled())
        raise WhenceError(f"There is no {name}.")

    monkeypatch.setattr("whence.models.transformers_models.load", note)
    with pytest.raises(WhenceError, match="There is no"):
        load(tmp_path, "image")
    assert seen == [False]
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--version"], 0), (["explain", "no-such-photo.jpg"], 2)]
)
def test_a_command_searches_for_no_garbage_when_it_ends(arguments, code):
    script = (
        "import atexit, gc\nfrom whence.cli.__main__ import main\n"
        "atexit.register(lambda: print('frozen:', gc.get_freeze_count() > 1000))\nmain()"
    )
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[-1] == "frozen: True"


@pytest.fixture
def frozen(monkeypatch):
    """A list that gets a number for each time that objects are kept for good."""
    calls = []
    monkeypatch.setattr(collecting.gc, "freeze", lambda: calls.append(gc.isenabled()))
    return calls


def test_a_command_keeps_what_it_loads_first_and_all_at_its_end(frozen):
    with run_one_command():
        with pytest.raises(WhenceError), hold_off_while_loading():
            raise WhenceError("There is no model.")
        assert frozen == []
        for _ in range(2):
            with hold_off_while_loading():
                assert not gc.isenabled()
        assert frozen == [False]
    assert frozen == [False, True]


def test_a_users_process_keeps_nothing_for_good(frozen):
    with hold_off_while_loading():
        pass
    with pytest.raises(WhenceError), run_one_command():
        raise WhenceError("It ends at once.")
    frozen.clear()
    with hold_off_while_loading():
        pass
    assert frozen == []
