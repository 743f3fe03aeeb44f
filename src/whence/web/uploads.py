"""The folder of files that people sent to the page, the only ones that a request may name."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whence.errors import WhenceError
from whence.web.limits import FOLDER_BYTES, UPLOAD_BYTES


class Uploads:
    """A folder of uploads.

    Args:
        folder: Where Gradio puts them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def find(self, path: Any) -> Path:
        """A file by its path, if it was uploaded here.

        Raises:
            WhenceError: It was not.
        """
        try:
            found = Path(path).resolve()
            inside = found.is_relative_to(self.folder) and found.is_file()
        except (OSError, TypeError, ValueError):  # a name that no file can have
            inside = False
        if not inside:
            raise WhenceError("That is no file that was uploaded to this page.")
        return found

    def check(self, request: Any) -> None:
        """See that a request, as JSON, names no other files.

        Gradio itself would fetch an address that stands in the place of a path, for any component.

        Raises:
            WhenceError: It does.
        """
        for path in _paths(request):
            self.find(path)

    def content(self, path: Any, most: int) -> bytes:
        """The bytes of an upload; one more than `most`, if there are more.

        Raises:
            WhenceError: It was not uploaded here.
        """
        with self.find(path).open("rb") as file:
            return file.read(most + 1)

    def keep(self, name: str, content: bytes) -> str:
        """The path of a new file, to be downloaded from here."""
        self.make_room()
        folder = self.folder / uuid.uuid4().hex
        folder.mkdir()
        (folder / name).write_bytes(content)
        return str(folder / name)

    def make_room(self) -> None:
        """Delete the oldest files, until one more fits within `FOLDER_BYTES`."""
        files = [(file, file.stat()) for file in self.folder.rglob("*") if file.is_file()]
        size = sum(about.st_size for _, about in files)
        for file, about in sorted(files, key=lambda one: one[1].st_mtime):
            if size + UPLOAD_BYTES <= FOLDER_BYTES:
                return
            file.unlink(missing_ok=True)
            size -= about.st_size


def _paths(request: Any) -> Iterator[Any]:
    if isinstance(request, dict):
        if "path" in request:
            yield request["path"]
        for value in request.values():
            yield from _paths(value)
    elif isinstance(request, list):
        for value in request:
            yield from _paths(value)
