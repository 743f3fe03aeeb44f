import pytest


@pytest.fixture
def make_page(report):
    """Run the command, and give the page that it wrote."""

    def run(*arguments, code: int = 0) -> str:
        report(*arguments, "--force", code=code)
        with open("report.html", encoding="utf-8") as file:
            return file.read()

    return run
