"""Facts and tensors in one safetensors file, whose header holds the facts as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from whence._util.files import check_is_file, write_atomically
from whence.errors import WhenceError

SUFFIX = ".safetensors"


def write_parts(
    path: str | Path, form: str, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write a file of a named form, whole or not at all."""
    header = {"format": form, "explanation": json.dumps(facts)}
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(Path(path), to_bytes(plain, header))


def read_parts(path: str | Path, form: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the facts and tensors of a file of that form.

    Raises:
        WhenceError: There is no such file, or it is damaged or of another form.
    """
    check_is_file(Path(path), "a saved explanation")
    with explain_damage(path):
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            found = header.get("format", "")
            if found != form and found.startswith("whence "):
                raise WhenceError(
                    f"'{path}' holds '{found}', not '{form}'; open it by the load of its own class."
                )
            if found != form:
                raise WhenceError(f"'{path}' is a safetensors file, but not an explanation.")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts: dict[str, Any] = json.loads(header["explanation"])
        return facts, tensors


def read_form(path: str | Path) -> str:
    """Read of which form a file is; empty if it is none."""
    try:
        with safe_open(path, framework="pt") as file:
            return str((file.metadata() or {}).get("format", ""))
    except Exception:  # what is wrong is said when the file is read
        return ""


@contextmanager
def explain_damage(path: str | Path) -> Iterator[None]:
    """Turn what reading a damaged file raises into a sentence.

    Raises:
        WhenceError: The file is damaged.
    """
    try:
        yield
    except WhenceError:
        raise
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RecursionError) as e:
        if Path(path).suffix.lower() not in ("", SUFFIX):
            raise WhenceError(
                f"'{path}' is not a {SUFFIX} file, the one form of a result that can be opened "
                f"again."
            ) from e
        raise WhenceError(f"'{path}' is damaged or not an explanation: {e}.") from e
