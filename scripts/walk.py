"""Count the modules that `whence explain cat.jpg` walks through, and guard their number.

A module counts if one of its functions runs; functions that run while modules are imported do not.
One module calls another if a function of it calls a function of the other directly. Not counted as
calls are what was handed over to be run (lambdas, nested functions, generators) and what comes
through torch: neither side knows the other there.

Run it with `python scripts/walk.py`. It fails where there are more modules than allowed, or where
two modules call each other.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import whence

MAX_MODULES = 130
_ROOT = Path(whence.__file__).parent
_FROM_TORCH = ("__torch_function__", "forward", "backward")


class Walk:
    """The modules of whence that run, and which of them call which.

    Attributes:
        modules: Names of the modules, each with the functions that ran.
        calls: Pairs of modules, the first of which calls the second, with example functions.
    """

    def __init__(self) -> None:
        self.modules: dict[str, set[str]] = {}
        self.calls: dict[tuple[str, str], str] = {}

    def pairs(self) -> list[tuple[str, str]]:
        """Modules that call each other."""
        return sorted((a, b) for a, b in self.calls if a < b and (b, a) in self.calls)

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record what runs until the block ends."""
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        name = _module_of(frame.f_code) if event == "call" else None
        if name is None or frame.f_code.co_name == "<module>" or _is_importing(frame):
            return
        self.modules.setdefault(name, set()).add(frame.f_code.co_qualname)
        caller = frame.f_back
        handed_over = "<locals>" in frame.f_code.co_qualname or "<lambda>" in frame.f_code.co_name
        if caller is None or handed_over or frame.f_code.co_name in _FROM_TORCH:
            return
        origin = _module_of(caller.f_code)
        if origin is not None and origin != name:
            example = f"{caller.f_code.co_qualname} -> {frame.f_code.co_qualname}"
            self.calls.setdefault((origin, name), example)


def _module_of(code: CodeType) -> str | None:
    path = Path(code.co_filename)
    if not path.is_relative_to(_ROOT):
        return None
    return ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "<module>" and _module_of(frame.f_code) is not None:
            return True
        if frame.f_code.co_name == "_call_with_frames_removed":
            return True
        frame = frame.f_back
    return False


def walk_explain() -> Walk:
    """Run `whence explain` on the photo that comes with whence, and record the walk."""
    from whence.cli.app import app

    walk = Walk()
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["explain", str(_ROOT / "demo" / "cat.jpg"), "--out", folder]
        with walk.record():
            app(arguments, standalone_mode=False)
    return walk


def main() -> int:
    """Print the walk; 1 if it is longer than allowed, or goes back and forth."""
    walk = walk_explain()
    for name in sorted(walk.modules):
        print(f"  {name}: {len(walk.modules[name])} functions")
    for a, b in walk.pairs():
        print(f"{a} and {b} call each other: {walk.calls[a, b]}; {walk.calls[b, a]}")
    print(f"{len(walk.modules)} modules (at most {MAX_MODULES}), {len(walk.pairs())} pairs")
    return int(len(walk.modules) > MAX_MODULES or bool(walk.pairs()))


if __name__ == "__main__":
    sys.exit(main())
