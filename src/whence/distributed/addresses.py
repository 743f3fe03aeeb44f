"""Files and folders by path or address, such as ``s3://bucket/photos``, through pyarrow."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from whence._util.text import first_line
from whence.distributed.rows import import_arrow
from whence.errors import WhenceError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_address(place: str) -> bool:
    """Whether it is an address with a scheme, and not a path."""
    return _SCHEME.match(place) is not None


def split_options(address: str) -> tuple[str, str]:
    """Split the options of a file system, such as ``?region=eu-west-1``, off an address."""
    plain, mark, options = address.rpartition("?")  # other question marks belong to a glob
    has_options = is_address(address) and "=" in options
    return (plain, mark + options) if has_options else (address, "")


class Location:
    """A file or folder in a file system of pyarrow, local or remote.

    Args:
        address: A path, or an address with a scheme that pyarrow knows: file, s3, gs, hdfs, ….
            Options of the file system follow a question mark, as pyarrow takes them.

    Raises:
        WhenceError: The address has another scheme, or cannot be reached.
    """

    def __init__(self, address: str | Path) -> None:
        self.address = str(address)
        self.files: Any
        self.root: str
        self.is_local = not is_address(self.address) or self.address.startswith("file://")
        if is_address(self.address):
            plain, options = split_options(self.address)
            scheme, _, rest = plain.partition("://")
            host, _, path = rest.partition("/")
            if "@" in host:
                raise WhenceError(
                    "An address with a key in it would be written to run.json. Give the key by "
                    "the environment, such as AWS_ACCESS_KEY_ID."
                )
            self.files, base = _open_file_system(scheme, host, options)
            self.root = f"{base.rstrip('/')}/{unquote(path) if self.is_local else path}"
        else:
            self.files, _ = _open_file_system("file", "", "")
            self.root = os.path.abspath(os.path.expanduser(self.address))

    def join(self, name: str) -> str:
        """The path of a file below this folder."""
        return f"{self.root.rstrip('/')}/{name}" if name else self.root

    def exists(self, name: str = "") -> bool:
        """Whether there is such a file or folder."""
        return bool(self._ask(name).type != import_arrow("pyarrow.fs").FileType.NotFound)

    def is_folder(self, name: str = "") -> bool:
        """Whether there is such a folder."""
        return bool(self._ask(name).type == import_arrow("pyarrow.fs").FileType.Directory)

    def list_names(self, name: str = "") -> list[str]:
        """List the names of the files and folders in a folder, sorted; empty if there is none."""
        fs = import_arrow("pyarrow.fs")
        with explain_read(self.address):
            selector = fs.FileSelector(self.join(name), allow_not_found=True)
            return sorted(info.base_name for info in self.files.get_file_info(selector))

    def read(self, name: str = "") -> bytes:
        """Read a file."""
        with self.files.open_input_file(self.join(name)) as file:
            content: bytes = file.read()
            return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file under another name and rename it, so that a half-written is never seen."""
        folder, _, last = name.rpartition("/")
        beside = f"{folder}/_{uuid.uuid4().hex}.{last}".lstrip("/")
        with explain_write(self.address):
            try:
                with self.files.open_output_stream(self.join(beside)) as file:
                    file.write(content)
                self.files.move(self.join(beside), self.join(name))
            except BaseException:
                self.delete(beside)
                raise

    def sync(self, name: str) -> None:
        """Wait until a local file is on the disk, so that it outlives a power cut."""
        if self.is_local:
            file = os.open(self.join(name), os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def move(self, name: str, to: str) -> None:
        """Rename a file."""
        self.files.move(self.join(name), self.join(to))

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        if self.exists(name):
            self.files.delete_file(self.join(name))

    def _ask(self, name: str) -> Any:
        with explain_read(self.address):
            return self.files.get_file_info(self.join(name))


@lru_cache(maxsize=32)
def _open_file_system(scheme: str, host: str, options: str) -> tuple[Any, str]:
    """Open a file system once: asking for an S3 bucket's region takes a request."""
    fs = import_arrow("pyarrow.fs")
    if scheme == "file":
        return fs.LocalFileSystem(), "/"
    address = f"{scheme}://{host}/"
    try:
        opened: tuple[Any, str] = fs.FileSystem.from_uri(f"{address}{options}")
    except (OSError, ValueError) as error:
        raise WhenceError(f"'{address}' cannot be opened: {first_line(error)}.") from error
    return opened


@contextmanager
def explain_read(address: str) -> Iterator[None]:
    """Turn errors of the file system into sentences on reading."""
    try:
        yield
    except OSError as error:
        raise WhenceError(f"'{address}' cannot be read: {_find_reason(error)}.") from error


@contextmanager
def explain_write(address: str) -> Iterator[None]:
    """Turn errors of the file system into sentences on writing."""
    try:
        yield
    except OSError as error:
        raise WhenceError(
            f"The folder '{address}' cannot be written to: {_find_reason(error)}."
        ) from error


def _find_reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else first_line(error)
