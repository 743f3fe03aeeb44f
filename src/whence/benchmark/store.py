"""Store settings and results of a benchmark run in its folder, each file whole or not at all."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from whence._util.extras import import_extra
from whence._util.files import exists, is_file, write_atomically
from whence._util.fingerprint import hash_texts
from whence._util.pickles import refuse_pickles
from whence.benchmark.columns import Columns, concatenate_columns, to_columns
from whence.errors import WhenceError

_FORMAT = "whence benchmark 1"
_STALE_SECONDS = 3600.0
_MOST_LETTERS = 60  # of a part of a name
_FILES = ("table.md", "table.csv", "table.tex", "curves.png", "report.html")


class ResultStore:
    """Results of a run in its folder: a Parquet file for each batch and method, and `run.json`.

    They depend on `settings`: a folder of other settings is refused. `set_aside` are result files
    that were damaged, and are called ``….broken`` now.
    """

    def __init__(self, folder: Path, settings: Mapping[str, object]) -> None:
        self._parquet = import_extra("pyarrow.parquet", "pyarrow", "benchmark")
        self._arrow = import_extra("pyarrow", "pyarrow", "benchmark")
        self.folder = folder
        self.settings = json.loads(json.dumps(settings))
        self.set_aside: list[str] = []
        self._parts: dict[str, list[Columns]] = {}
        self._done: dict[str, set[str]] = {}
        self.earlier = self._read_run()
        if self.earlier.get("state") == "stopped" and not self.has_files():
            self.earlier = {}  # it ended before there was any result, so nothing depends on it
        self._check_settings()
        self._make_folder(folder / "parts")
        self._read_parts()

    def list_done(self, method: str) -> set[str]:
        """Names of the samples that a method has results for."""
        return self._done.get(method, set())

    def has_files(self) -> bool:
        """Whether there are result files, damaged ones among them."""
        return any((self.folder / "parts").glob("*/*.parquet*"))

    def has_results(self, method: str, figures: Collection[str]) -> bool:
        """Whether a method has any of these figures; rows of errors and empty rows have none."""
        return any(
            name in part and part[name].dtype != object and np.isfinite(part[name]).any()
            for part in self._parts.get(method, ())
            for name in figures
        )

    def add(self, method: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Add the rows of a batch; if that fails, nothing written before is lost."""
        rows = [
            {k: _to_utf8(v) if isinstance(v, str) else v for k, v in row.items()} for row in rows
        ]
        names = [str(row["sample"]) for row in rows]
        home = self.folder / "parts" / f"{to_file_name(method)}-{hash_texts(method)}"
        self._make_folder(home)
        stream = io.BytesIO()
        keys = list(dict.fromkeys(key for row in rows for key in row))
        table = self._arrow.Table.from_pylist([{key: row.get(key) for key in keys} for row in rows])
        table = table.replace_schema_metadata({"method": method})
        self._parquet.write_table(table, stream, write_page_checksum=True)
        path = home / f"{hash_texts(*names)}.parquet"
        try:
            write_atomically(path, stream.getvalue())
        except WhenceError as error:
            raise WhenceError(f"{error} What was done so far is kept; run it again.") from error
        self._add_columns(method, to_columns(table.to_pylist()))

    def load_results(self, method: str, names: Sequence[str]) -> Columns:
        """The columns of a method, a row for each name."""
        whole = concatenate_columns(self._parts.get(method, []))
        index = {str(name): at for at, name in enumerate(whole.get("sample", ()))}
        order = [index[name] for name in names]
        return {key: values[order] for key, values in whole.items()}

    def write_run(self, facts: Mapping[str, object]) -> None:
        """Write `run.json`: the settings and further facts."""
        content = {"format": _FORMAT, "settings": self.settings, **facts}
        self.write("run.json", json.dumps(content, ensure_ascii=False, indent=2) + "\n")

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file of the folder, whole or not at all."""
        path = self.folder / name
        write_atomically(path, _to_utf8(content).encode() if isinstance(content, str) else content)
        return path

    def _read_run(self) -> dict[str, Any]:
        path = self.folder / "run.json"
        if exists(self.folder) and not self.folder.is_dir():
            raise WhenceError(f"'{self.folder}' is a file, not a folder; name another with --out.")
        if not is_file(path):
            if exists(self.folder / "parts") and any((self.folder / "parts").iterdir()):
                raise WhenceError(
                    f"'{self.folder}' holds results but no run.json that tells their settings; "
                    f"name another folder with --out."
                )
            taken = next((name for name in _FILES if exists(self.folder / name)), None)
            if taken:
                raise WhenceError(
                    f"'{self.folder}' holds a {taken} that is not of a run, and it would be "
                    f"overwritten; name another folder with --out."
                )
            return {}
        return read_run_file(path)

    def _check_settings(self) -> None:
        before = self.earlier.get("settings")
        if before is None:
            return
        for name in dict.fromkeys([*before, *self.settings]):
            was, now = before.get(name), self.settings.get(name)
            if was != now:
                raise WhenceError(
                    f"'{self.folder}' holds a run with another setting: '{name}' was "
                    f"{quote_setting(was)} and is {quote_setting(now)} now. Name another folder "
                    f"with --out, or give the earlier setting."
                )

    def _make_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or str(error)
            raise WhenceError(f"The folder '{folder}' cannot be made: {reason}.") from error

    def _read_parts(self) -> None:
        for file in sorted((self.folder / "parts").glob("*/*")):
            if file.name.startswith("."):
                self._remove_if_stale(file)
            elif file.suffix == ".parquet":
                self._read_part(file)

    def _read_part(self, file: Path) -> None:
        try:
            content = io.BytesIO(file.read_bytes())
            table = self._parquet.read_table(content, page_checksum_verification=True)
            refuse_pickles(table.schema)
            method = table.schema.metadata[b"method"].decode()
            columns = to_columns(table.to_pylist())
            assert "sample" in columns
        except Exception:  # a damaged file may fail in any way
            try:
                file.replace(file.with_name(f"{file.name}.broken"))
            except OSError as error:
                problem = f"'{file}' is damaged and cannot be set aside: {error}."
                raise WhenceError(problem) from None
            self.set_aside.append(str(file.relative_to(self.folder)))
            return
        self._add_columns(method, columns)

    def _add_columns(self, method: str, columns: Columns) -> None:
        done = self._done.setdefault(method, set())
        # Runs with other batches may hold a sample twice; the first is as good as the second.
        new = np.array([str(name) not in done for name in columns["sample"]])
        self._parts.setdefault(method, []).append({k: v[new] for k, v in columns.items()})
        done.update(map(str, columns["sample"]))

    def _remove_if_stale(self, file: Path) -> None:
        """Remove a file that a killed run was writing, unless another run may be writing it now."""
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > _STALE_SECONDS:
                file.unlink()


def read_run_file(path: Path) -> dict[str, Any]:
    """Read the run.json of a run.

    Raises:
        WhenceError: It is damaged, or not that of a run.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] == _FORMAT and "settings" in content and _is_complete(content):
            return dict(content)
    except (OSError, ValueError, LookupError, TypeError):
        pass
    raise WhenceError(f"'{path}' is damaged or not that of a run; name another folder with --out.")


def _is_complete(content: Mapping[str, object]) -> bool:
    """Whether the content of run.json has the types that were written."""
    lists = [content.get(name, []) for name in ("methods", "methods_before", "versions_before")]
    single = [content.get(name, {}) for name in ("settings", "versions")]
    for values in (single, *lists):
        if not isinstance(values, list) or not all(isinstance(one, dict) for one in values):
            return False
    return True


def _to_utf8(text: str) -> str:
    """Text that can be written: paths in error messages need not be UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def quote_setting(value: object) -> str:
    """A setting in a sentence."""
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


def to_file_name(text: str) -> str:
    """Turn a text into a part of a file name; of a long one, the end."""
    return _replace_signs(text)[-_MOST_LETTERS:].strip("-.") or "unnamed"


def to_folder_name(*parts: str) -> str:
    """Turn texts into the name of a folder; long ones end with a hash, so that names differ."""
    names = []
    for text in parts:
        name = _replace_signs(text)
        if len(name) > _MOST_LETTERS:
            name = f"{name[: _MOST_LETTERS - 13].rstrip('-.')}-{hash_texts(text)}"
        names.append(name or "unnamed")
    return "-".join(names)


def _replace_signs(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", text).strip("-.")
