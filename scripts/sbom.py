"""Write the software bill of materials of a wheel: what whence's dependencies resolve to.

cyclonedx-py lists an environment that has the core dependencies at the versions of constraints.txt
and nothing else; whence itself is added here with the version and the hash of the wheel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from archives import hash_file

SPECIFICATION = "1.6"


def write_sbom(python: Path, pyproject: Path, wheel: Path, epoch: int) -> Path:
    """Write the bill of materials beside the wheel, in CycloneDX JSON; its path."""
    name, version = wheel.name.split("-")[:2]
    texts = [list_environment(python, pyproject, epoch) for _ in range(2)]
    if texts[0] != texts[1]:
        raise SystemExit("Two bills of materials of the same environment differ.")
    bill = json.loads(texts[0])
    bill["metadata"]["component"] |= {
        "version": version,
        "purl": f"pkg:generic/{name}@{version}",  # on PyPI the name is another project's
        "hashes": [{"alg": "SHA-256", "content": hash_file(wheel)}],
    }
    text = json.dumps(bill, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    check_schema(text)
    path = wheel.parent / f"{name}-{version}.cdx.json"
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def list_environment(python: Path, pyproject: Path, epoch: int) -> str:
    """List the packages of an environment, and who needs whom."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "cyclonedx_py", "environment", str(python)),
            *("--pyproject", str(pyproject), "--mc-type", "library", "--sv", SPECIFICATION),
            "--output-reproducible",
        ],
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"No bill of materials could be made:\n{done.stderr}")
    return done.stdout


def check_schema(text: str) -> None:
    """Refuse a bill of materials that is not valid CycloneDX."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    if error := JsonStrictValidator(SchemaVersion.from_version(SPECIFICATION)).validate_str(text):
        raise SystemExit(f"The bill of materials is not valid CycloneDX {SPECIFICATION}: {error}")
