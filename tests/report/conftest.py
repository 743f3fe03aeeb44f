import pytest
from typer.testing import CliRunner

from tests.saved import photo
from whence.cli.app import app

HOSTILE = "<img src=x onerror=alert(1)> &amp; \"'.png"


@pytest.fixture
def here(tmp_path, monkeypatch, embedded):
    """A folder to work in, with photos, one of which is damaged and one badly named."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "photos"
    folder.mkdir()
    photo().save(folder / "a.png")
    photo(30, 50, seed=1).save(folder / "b.jpg")
    photo(seed=2).save(folder / HOSTILE)
    (folder / "c.png").write_bytes(b"\x89PNG\r\n\x1a\n damaged")
    return tmp_path


@pytest.fixture
def report():
    """Run the command; the output if it ends as expected."""

    def run(*arguments, code: int = 0):
        result = CliRunner().invoke(app, ["report", *map(str, arguments)])
        assert result.exit_code == code, result.output + repr(result.exception)
        assert "Traceback" not in result.output
        return result

    return run
