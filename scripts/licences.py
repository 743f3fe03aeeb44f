"""Read the licences of packages, and tell which do not go with distribution under Apache-2.0."""

from __future__ import annotations

from importlib.metadata import Distribution

from license_expression import ExpressionError, LicenseWithExceptionSymbol, get_spdx_licensing

LICENSING = get_spdx_licensing()
# A library under Apache-2.0 may need packages under these: permissive ones, and the MPL, which
# binds its own files alone.
ALLOWED = frozenset(
    "0BSD Apache-2.0 BSD-2-Clause BSD-3-Clause BSL-1.0 CC0-1.0 CNRI-Python HPND ISC MIT MIT-0 "
    "MIT-CMU MPL-2.0 NCSA PSF-2.0 Python-2.0 Unlicense Zlib".split()
)
# What packages write that is no SPDX expression. "BSD" leaves open how many clauses.
SPELLINGS = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
# Packages whose metadata do not tell, with what was read in their licence file.
READ_BY_HAND = {"axe-playwright-python": "MIT"}
# Not distributed by whence: they come with torch's builds for CUDA, under terms of their own.
ONLY_WITH_CUDA = ("cuda-", "nvidia-")


def find_licence(package: Distribution) -> str:
    """Find the licence of a package as an SPDX expression, or as it is written; empty if nowhere.

    The expression counts first, then the classifiers, then the free text.
    """
    metadata = package.metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classifiers = (c.split(" :: ") for c in metadata.get_all("Classifier") or ())
    named = [parts[-1] for parts in classifiers if parts[0] == "License" and len(parts) > 2]
    text = next(iter((metadata.get("License") or "").strip().splitlines()), "")
    named = named or [text if text != "UNKNOWN" else ""]
    licence = " AND ".join(SPELLINGS.get(name.lower(), name) for name in named)
    return licence or READ_BY_HAND.get(metadata["Name"].lower(), "")


def find_problem(name: str, licence: str) -> str:
    """Say why a licence does not go with Apache-2.0; empty if it does."""
    if name.startswith(ONLY_WITH_CUDA):
        return ""
    if not licence:
        return "names no licence"
    try:
        expression = LICENSING.parse(licence, validate=True)
    except ExpressionError:
        return f"has a licence that is not known: '{licence}'"
    return "" if _is_allowed(expression) else f"is under {licence}"


def _is_allowed(expression: object) -> bool:
    """Whether every part of an expression is allowed, or of alternatives one."""
    if isinstance(expression, LICENSING.AND):
        return all(_is_allowed(part) for part in expression.args)
    if isinstance(expression, LICENSING.OR):
        return any(_is_allowed(part) for part in expression.args)
    if isinstance(expression, LicenseWithExceptionSymbol):  # an exception only permits more
        return expression.license_symbol.key in ALLOWED
    return getattr(expression, "key", None) in ALLOWED
