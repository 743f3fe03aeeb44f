"""`whence methods`, and a new method that is one file."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

import whence
from whence import Explanation, methods
from whence.cli.app import app


def test_all_methods_are_listed():
    result = CliRunner().invoke(app, ["methods"])
    assert result.exit_code == 0
    for name in methods.available():
        about = methods.describe(name)
        by_class = "yes" if about.class_specific else "no"
        begins = re.escape(" ".join(about.summary.split()[:3]))
        assert re.search(rf"^ ?{name} +{by_class} +{begins}", result.stdout, re.MULTILINE), name
    assert re.search(r"tiba +yes +Gradient-weighted relevance of every attention", result.stdout)


def test_a_method_is_described():
    told = CliRunner().invoke(app, ["methods", "tiba"]).stdout
    assert "Chefer, Gur, Wolf" in told
    assert "class-specific" in told
    assert "cost in forward passes: 5" in told
    assert "start_layer: a whole number = 0" in told
    assert "gradients: 'plain' or 'balanced' or 'residual' = 'plain'" in told
    wrong = CliRunner().invoke(app, ["methods", "tibba"])
    assert wrong.exit_code == 2
    assert "Did you mean 'tiba'?" in wrong.output


NEW_METHOD = '''
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from whence.evidence import Evidence
from whence.methods.registry import Method, register


@register("corner")
@dataclass(frozen=True)
class Corner(Method):
    """Everything comes from one corner of the photo."""

    class_specific: ClassVar[bool] = False

    last: bool = False

    def __call__(self, evidence: Evidence) -> Tensor:
        scores = torch.zeros_like(evidence.pooling)
        scores[..., -1 if self.last else evidence.layout.prefix] = 1
        return scores
'''


def test_a_new_method_is_one_file(two_photos):
    """Put into the folder of methods, it is in the command line with its options and its label."""
    package = Path(whence.__file__).parent
    shutil.copytree(package, "src/whence", ignore=shutil.ignore_patterns("__pycache__"))
    Path("src/whence/methods/corner.py").write_text(NEW_METHOD)

    def run(*arguments: str) -> str:
        script = "import tests.conftest\nfrom whence.cli.app import app\napp()"
        command = [sys.executable, "-c", script, *arguments]
        path = os.pathsep.join(("src", str(Path(__file__).parents[2])))
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert re.search(r"corner +no +Everything comes from one corner", run("methods"))
    told = run("explain", "one.png", "--method", "corner", "-o", "last=true", "--json")
    (entry,) = json.loads(told)["inputs"]
    assert entry["settings"] == {"last": True}
    assert entry["notes"] == ["corner is the same for every class"]
    columns = Explanation.load("whence-out/one.safetensors").grid[1]
    assert entry["classes"][0]["top"][0]["column"] == columns - 1
