"""Run the notebooks of this folder and write them back with what they show.

python examples/execute.py
"""

import base64
import io
import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

EXAMPLES = Path(__file__).parent
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
WIDEST, QUALITY = 400, 80
"""Photos in what is shown are at most so wide, and JPEGs of that quality."""


def run_notebook(path: Path, before: str = "") -> nbformat.NotebookNode:
    """A notebook with its outputs made anew.

    Args:
        path: The notebook.
        before: Code that its kernel runs first, which is not part of it.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed; it says which and why.
    """
    notebook = nbformat.read(path, as_version=4)
    first = nbformat.v4.new_code_cell(before)
    notebook.cells.insert(0, first)
    NotebookClient(notebook, timeout=300, record_timing=False).execute(cwd=str(EXAMPLES))
    notebook.cells.remove(first)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, 1):
        cell.execution_count = number
        # Progress bars and warnings are of the machine that ran them.
        cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = number
            _keep_one_form(output.get("data", {}))
            _shrink_photos(output.get("data", {}))
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def _keep_one_form(data: dict[str, str]) -> None:
    """Of the forms that a result is shown in, keep the best that is small."""
    for form in ("image/jpeg", "image/png", "image/svg+xml", "text/html"):
        if form in data:
            for other in set(data) - {form}:
                del data[other]
            return


def _shrink_photos(data: dict[str, str]) -> None:
    """Make the photos smaller that a page or a figure holds: a notebook is read, not printed."""
    for form in ("image/svg+xml", "text/html"):
        if form in data:
            data[form] = re.sub(
                r"(data:image/jpeg;base64,)([A-Za-z0-9+/=]+)",
                lambda match: match[1] + _shrink(match[2]),
                data[form],
            )


def _shrink(encoded: str) -> str:
    image = Image.open(io.BytesIO(base64.b64decode(encoded)))
    image.thumbnail((WIDEST, WIDEST))
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=QUALITY, optimize=True)
    return base64.b64encode(stream.getvalue()).decode()


def main() -> None:
    """Run all of them."""
    for path in NOTEBOOKS:
        nbformat.write(run_notebook(path), path)
        print(path.name)


if __name__ == "__main__":
    main()
