"""List the files that paths, folders, globs and addresses name, by ids that do not depend on where.

A file's id is its path relative to the folder that was named; of several arguments, to the folder
that they share.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from whence._util.near_names import suggest_paths
from whence.distributed.addresses import Location, is_address, split_options
from whence.distributed.rows import import_arrow
from whence.errors import WhenceError

_CHUNK = 65536
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class NamedFiles:
    """The files of one argument.

    Attributes:
        root: The folder of which paths are relative: an absolute path, or an address.
        names: Their paths below it, with slashes; read once.
    """

    root: str
    names: Iterator[str]


def name_files(argument: str) -> NamedFiles:
    """Find the files of a path, a folder with all below it, a glob or an address.

    Raises:
        WhenceError: Nothing is there, or it may not be read.
    """
    return _name_remote(argument) if is_address(argument) else _name_local(argument)


def join_roots(roots: Sequence[str]) -> str:
    """Find the folder that all roots share.

    Raises:
        WhenceError: They are in different file systems.
    """
    schemes = {root.partition("://")[0] if is_address(root) else "" for root in roots}
    if len(schemes) > 1:
        raise WhenceError("The inputs are in different file systems; explain them apart.")
    scheme = schemes.pop()
    if not scheme:
        return os.path.commonpath(roots)
    shared = os.path.commonpath([root.partition("://")[2] for root in roots])
    if not shared:
        raise WhenceError("The inputs are in different buckets; explain them apart.")
    return f"{scheme}://{shared}"


def list_ids(
    found: Sequence[NamedFiles], root: str, kinds: Mapping[Name, frozenset[str]]
) -> tuple[dict[Name, Any], int]:
    """List the ids of files by kind, each once.

    Args:
        found: The files of each argument.
        root: Of which ids are relative.
        kinds: For each kind, the suffixes of its files in lower case, with their dots.

    Returns:
        A `pyarrow.ChunkedArray` of each kind, and the number of other files.
    """
    pa = import_arrow()
    of_suffix = {suffix: kind for kind, suffixes in kinds.items() for suffix in suffixes}
    open_chunks: dict[Name, list[str]] = {kind: [] for kind in kinds}
    chunks: dict[Name, list[Any]] = {kind: [] for kind in kinds}
    others = 0
    for named in found:
        below = named.root[len(root.rstrip("/")) :].strip("/")
        for name in named.names:
            kind = of_suffix.get(os.path.splitext(name)[1].lower())
            if kind is None:
                others += 1
                continue
            chunk = open_chunks[kind]
            chunk.append(_to_id(f"{below}/{name}" if below else name))
            if len(chunk) == _CHUNK:
                chunks[kind].append(pa.array(chunk, pa.string()))
                chunk.clear()
    for kind, chunk in open_chunks.items():
        chunks[kind].append(pa.array(chunk, pa.string()))
    ids = {kind: pa.chunked_array(held) for kind, held in chunks.items()}
    if len(found) > 1:  # a file that two arguments name is one input
        ids = {kind: pa.chunked_array([held.unique()]) for kind, held in ids.items()}
    return ids, others


def _to_id(name: str) -> str:
    """A name that is not UTF-8 cannot be written; as an id it is, and then is not found."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return os.fsencode(name).decode("utf-8", "backslashreplace")
    return name


def _name_local(argument: str) -> NamedFiles:
    path = os.path.expanduser(argument)
    if os.path.isdir(path):
        root = os.path.abspath(path)
        return NamedFiles(root, _walk(root, ""))
    if os.path.exists(path):
        folder, name = os.path.split(os.path.abspath(path))
        return NamedFiles(folder, iter([name]))
    if glob.has_magic(path):
        root = os.path.abspath(_find_plain_folder(path))
        found = (os.path.abspath(one) for one in sorted(glob.glob(path, recursive=True)))
        return NamedFiles(root, _expand_folders(root, found))
    raise WhenceError(
        f"'{argument}' is not there, or may not be read.{suggest_paths(Path(path))} Runs over many "
        f"inputs take files, folders, globs, tables and addresses."
    )


def _expand_folders(root: str, paths: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for path in paths:
        name = os.path.relpath(path, root).replace(os.sep, "/")
        if not os.path.isdir(path):
            if name not in seen:
                seen.add(name)
                yield name
            continue
        for below in _walk(path, ""):
            if f"{name}/{below}" not in seen:
                seen.add(f"{name}/{below}")
                yield f"{name}/{below}"


def _walk(folder: str, prefix: str, above: frozenset[str] = frozenset()) -> Iterator[str]:
    """Walk over the files below a folder, sorted; hidden ones are left out."""
    here = os.path.realpath(folder)
    if here in above:  # a link that leads back
        return
    names: list[str] = []
    folders: set[str] = set()
    try:
        with os.scandir(folder) as found:
            for one in found:
                if not one.name.startswith("."):
                    names.append(one.name)
                    if one.is_dir():
                        folders.add(one.name)
    except OSError as error:
        raise WhenceError(f"The folder '{folder}' cannot be read: {error.strerror}.") from error
    names.sort()
    for name in names:
        if name in folders:
            yield from _walk(os.path.join(folder, name), f"{prefix}{name}/", above | {here})
        else:
            yield f"{prefix}{name}"


def _name_remote(argument: str) -> NamedFiles:
    """Find the files of an address; a glob in it is matched by ourselves."""
    fs = import_arrow("pyarrow.fs")
    argument, options = split_options(argument)
    plain = _find_plain_folder(argument) if glob.has_magic(argument) else argument
    place = Location(plain + options)
    try:
        info = place.files.get_file_info(place.root)
        if info.type == fs.FileType.File:
            folder, _, name = plain.rpartition("/")
            return NamedFiles(folder, iter([name]))
        selector = fs.FileSelector(place.root, recursive=True)
        found = sorted(one.path for one in place.files.get_file_info(selector) if one.is_file)
    except OSError as error:
        raise WhenceError(f"'{plain}' is not there, or may not be read.") from error
    start = len(place.root.rstrip("/")) + 1
    names: Iterable[str] = (one[start:] for one in found if "/." not in one[start - 1 :])
    if plain is not argument:
        pattern = _translate_glob(argument[len(plain.rstrip("/")) + 1 :])
        names = (name for name in names if pattern.fullmatch(name))
    return NamedFiles(plain.rstrip("/"), iter(list(names)))


def _find_plain_folder(pattern: str) -> str:
    """The folders at the beginning of a glob that hold no magic."""
    parts = pattern.split("/")
    first = next(place for place, part in enumerate(parts) if glob.has_magic(part))
    return "/".join(parts[:first]) or ("/" if pattern.startswith("/") else ".")


def _translate_glob(pattern: str) -> re.Pattern[str]:
    """A glob as a regular expression: ``**`` for any folders, ``*`` and ``?`` within a name."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]*\])", pattern)
    known = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile(
        "".join(
            known.get(part) or (part.replace("[!", "[^") if part[:1] == "[" else re.escape(part))
            for part in parts
        )
    )
