"""The folder of files that visitors uploaded: the only files that a request may name."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

from whence.errors import WhenceError
from whence.web.limits import MAX_FOLDER_BYTES, MAX_UPLOAD_BYTES


class UploadFolder:
    """The folder where Gradio stores uploads, limited in size."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def find(self, path: object) -> Path:
        """Resolve the path of an uploaded file, or refuse one that is not in this folder."""
        try:
            file = Path(path).resolve()  # type: ignore[arg-type]  # anything else is a TypeError
            is_upload = file.is_relative_to(self.folder) and file.is_file()
        except (OSError, TypeError, ValueError):  # a name that no file can have
            is_upload = False
        if not is_upload:
            raise WhenceError("That is no file that was uploaded to this page.")
        return file

    def check_request(self, request: object) -> None:
        """Check that a request, as JSON, names no files but uploads.

        Gradio itself would fetch an address that stands in the place of a path, for any component.
        """
        for path in _list_paths(request):
            self.find(path)

    def read(self, path: object, max_bytes: int) -> bytes:
        """Read the bytes of an upload; one more than `max_bytes`, if there are more."""
        with self.find(path).open("rb") as file:
            return file.read(max_bytes + 1)

    def store(self, name: str, content: bytes) -> str:
        """Write a new file that visitors can download, and return its path."""
        self.make_room()
        folder = self.folder / uuid.uuid4().hex
        folder.mkdir()
        (folder / name).write_bytes(content)
        return str(folder / name)

    def make_room(self) -> None:
        """Delete the oldest files, until one more fits within `MAX_FOLDER_BYTES`."""
        files = []
        for file in self.folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # another thread deleted it
                if file.is_file():
                    files.append((file, file.stat()))
        size = sum(stat.st_size for _, stat in files)
        for file, stat in sorted(files, key=lambda pair: pair[1].st_mtime):
            if size + MAX_UPLOAD_BYTES <= MAX_FOLDER_BYTES:
                return
            file.unlink(missing_ok=True)
            size -= stat.st_size


def _list_paths(request: object) -> Iterator[object]:
    """All values that stand under the key "path", at any depth."""
    if isinstance(request, dict):
        if "path" in request:
            yield request["path"]
        request = list(request.values())
    if isinstance(request, list):
        for value in request:
            yield from _list_paths(value)
