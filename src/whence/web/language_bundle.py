"""Saves a generated text as a zip file that the page opens again.

The zip file holds ``settings.json``, which says how the text is generated, and the text with its
scores as a page, as tables, and as what `whence.explanation.Generation.load` reads. The page reads
the settings alone, and generates the text again: it is always the most probable one.
"""

from __future__ import annotations

import dataclasses
import io
import json
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from whence.errors import WhenceError
from whence.explanation import Generation
from whence.version import __version__

FORMAT = "whence generation 1"


@dataclass(frozen=True)
class GenerationSettings:
    """How a text is generated: the values of the components; any of them may be forged."""

    model: object
    prompt: object
    count: object
    method: object

    @classmethod
    def from_settings(cls, settings: Mapping[str, object]) -> GenerationSettings:
        """Read them from what ``settings.json`` holds."""
        try:
            return cls(**{field.name: settings[field.name] for field in dataclasses.fields(cls)})
        except KeyError:
            raise WhenceError("This is not a zip file of this page, or it is damaged.") from None


def pack_generation(generation: Generation, settings: GenerationSettings) -> bytes:
    """Write a zip file: settings, a page, tables and all that `Generation.load` reads."""
    out = io.BytesIO()
    known = {"format": FORMAT, "whence": __version__, **dataclasses.asdict(settings)}
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(out, "w") as file:
        file.writestr("settings.json", json.dumps(known, indent=1))
        for suffix in ("html", "csv", "json", "safetensors"):
            path = Path(folder) / f"generation.{suffix}"
            generation.save(path)
            file.write(path, path.name, zipfile.ZIP_DEFLATED)
    return out.getvalue()
