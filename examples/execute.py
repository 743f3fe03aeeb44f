"""Run the notebooks of this folder and write them back with what they show.

python examples/execute.py
"""

from pathlib import Path

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parent
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def executed(path: Path, before: str = "") -> nbformat.NotebookNode:
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
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def _keep_one_form(data: dict[str, str]) -> None:
    """Of the forms that a result is shown in, keep the best that is small."""
    for form in ("image/jpeg", "image/png", "text/html"):
        if form in data:
            for other in set(data) - {form}:
                del data[other]
            return


def main() -> None:
    """Run all of them."""
    for path in NOTEBOOKS:
        nbformat.write(executed(path), path)
        print(path.name)


if __name__ == "__main__":
    main()
