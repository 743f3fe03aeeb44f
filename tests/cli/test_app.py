"""The app itself: help, version, completion, errors and warnings as sentences."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.cli.commands import list_files, run_explain
from tests.test_imports import EXTRAS
from whence import __version__
from whence.cli.app import app


def test_version():
    assert CliRunner().invoke(app, ["--version"]).stdout == f"whence {__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["explain", "--help"], ["--version"]])
def test_help_answers_without_heavy_libraries(arguments):
    heavy = {"numpy", "PIL", "torch", "transformers"} | EXTRAS
    script = (
        "import sys\nfrom whence.cli.app import app\ntry:\n    app(sys.argv[1:])\nfinally:\n    "
        f"assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    )
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("arguments", [["models"], ["models", "--family", "vit"]])
def test_models_are_listed_without_torch(arguments):
    script = (
        "import sys\nfrom whence.cli.app import app\ntry:\n    app(sys.argv[1:])\nfinally:\n    "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ViT" in done.stdout or "pets" in done.stdout


def test_shell_completion(monkeypatch):
    # Otherwise the shell is looked for among the processes that started the tests.
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    shown = CliRunner().invoke(app, ["--show-completion"], prog_name="whence")
    assert shown.exit_code == 0
    assert "_WHENCE_COMPLETE=complete_bash" in shown.stdout
    environment = {
        "_WHENCE_COMPLETE": "complete_bash",
        "COMP_WORDS": "whence explain --method ti",
        "COMP_CWORD": "3",
    }
    done = CliRunner().invoke(app, [], env=environment, prog_name="whence")
    assert "tiba" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [["--precision", "fp8"], ["--batch", "0"], ["--top", "0"], ["--format", "bmp"], ["--no"]],
)
def test_usage(arguments, two_photos):
    result = run_explain("one.png", *arguments, code=2)
    assert "Usage: whence explain" in result.stderr
    assert arguments[0] in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["explian"], "Did you mean 'explain'?"),
        (["explain", "x", "--metod", "gae"], "--method"),
        (["benchmark", "pertubation", "--data", "."], "Did you mean 'perturbation'?"),
        (["methods", "attention"], "'attention_flow', 'attention_gradcam'"),
        (["models", "./nowhere"], "There is no folder './nowhere'"),
    ],
)
def test_mistyped_commands_options_and_names(arguments, near):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert near in result.stderr
    assert result.stdout == ""


def test_every_command_has_a_help_with_examples():
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "100"}).stdout
    commands = ("explain", "generate", "report", "benchmark", "serve", "methods", "models")
    places = [shown.index(f"│ {command}") for command in commands]
    assert places == sorted(places)
    for command in commands:
        text = CliRunner().invoke(app, [command, "--help"]).stdout
        assert f"whence {command}" in text.partition("Examples")[2]


@pytest.mark.parametrize("command", ["explain", "benchmark"])
def test_help_shows_the_names_of_extras(command):
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).stdout
    assert "pip install 'whence[ray]'" in " ".join(shown.split())


def test_a_warning_is_a_sentence(two_photos):
    result = run_explain("one.png", "--rules", "reference")
    assert result.stderr.startswith("Note: Method 'whence' propagates no relevance, so that rules=")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "kat"], "There is no class 'kat'. The model has 'cat', 'dog', 'crane'"),
        (["--target", "7"], "Class 7 does not exist"),
        (["--top", "9"], "the model has 3 classes"),
        (["--top", "2", "--target", "cat"], "either --target or --top"),
        (["--method", "tibba"], "no method 'tibba'. Did you mean 'tiba'"),
        (["--rules", "lax"], "lax"),
        (["--start-layer", "9"], "start_layer=9 does not exist"),
        (["--model", "./none"], "There is no folder './none'"),
        (["--weights", "w.safetensors"], "timm:NAME and torchvision:NAME only"),
        (["--device", "cpu", "--precision", "tf32"], "The precision tf32 needs a GPU"),
        (["--device", "toaster"], "There is no device 'toaster'"),
        (["--out", "one.png"], "'one.png' cannot be written to"),
        (["--out", "one.png/deeper"], "cannot be written to"),
        (["--out", "cat.html"], "--out names a folder, and 'cat.html' looks like a file"),
        (["--out", "/proc/nothing"], "'/proc/nothing' cannot be written to"),
    ],
)
def test_requests_that_cannot_be_met(arguments, message, two_photos):
    result = run_explain("one.png", *arguments, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    out = two_photos / "whence-out"
    assert not out.exists() or not list_files(out)
