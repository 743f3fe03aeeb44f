"""`whence serve` refuses what would be unsafe, before anything is loaded."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from whence.cli import serve as command
from whence.cli.app import app


def said(*arguments, **environment):
    result = CliRunner().invoke(app, ["serve", *arguments], env=environment)
    assert result.exit_code == 2
    return result.output


def test_other_hosts_need_a_word_on_who_may_use_the_page():
    assert "--auth NAME:PASSWORD" in said("--host", "0.0.0.0")
    assert "--no-auth" in said("--host", "192.168.1.5")


@pytest.mark.parametrize("auth", ["ada", ":horse", "ada:", ""])
def test_auth_is_a_name_and_a_password(auth):
    assert "NAME:PASSWORD" in said("--auth", auth)


def test_auth_from_the_environment_is_checked_too():
    assert "NAME:PASSWORD" in said(WHENCE_AUTH="ada")


def test_auth_and_no_auth_exclude_each_other():
    assert "not both" in said("--auth", "a:b", "--no-auth")


def test_login():
    assert command._parse_login("127.0.0.1", None, False) is None
    assert command._parse_login("0.0.0.0", None, True) is None
    assert command._parse_login("0.0.0.0", "ada:a:b", False) == ("ada", "a:b")


def test_models_are_checked_at_the_start():
    pytest.importorskip("gradio", reason="whence[web] is not installed")
    assert "weights" in said("--weights", "a.safetensors")
    assert "nowhere" in said("--model", "./nowhere")


def test_without_gradio_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert "whence[web]" in said()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_without_an_error_at_any_moment(number, monkeypatch):
    """Also before the page is served, and before anything waits for a signal."""
    pytest.importorskip("gradio", reason="whence[web] is not installed")
    previous = signal.getsignal(signal.SIGTERM)
    interrupt = signal.getsignal(signal.SIGINT)

    def load(*_):
        if number == signal.SIGINT:  # which a process in the background ignores from its start
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(number)
        raise AssertionError("the signal was ignored")

    monkeypatch.setattr("whence.web.service.ExplanationService.load", load)
    try:
        assert CliRunner().invoke(app, ["serve"]).exit_code == 0
    finally:
        signal.signal(signal.SIGINT, interrupt)
    assert signal.getsignal(signal.SIGTERM) == previous


def test_a_second_signal_does_not_interrupt_the_cleanup():
    deleted = False
    with command._end_on_signal():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            deleted = True
    assert deleted


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_however_it_is_stopped_no_upload_stays(number, tmp_path):
    pytest.importorskip("gradio", reason="whence[web] is not installed")
    running = subprocess.Popen(
        [
            sys.executable,
            "-c",
            # Started from a shell's background, a process would ignore the interrupt.
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "import tests.conftest; from whence.cli.app import app; app(['serve'])",
        ],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert "The page is at http://127.0.0.1:" in running.stdout.readline()
    assert list(tmp_path.glob("whence-*"))
    running.send_signal(number)
    running.communicate(timeout=60)
    assert running.returncode == 0
    assert not list(tmp_path.glob("whence-*"))
