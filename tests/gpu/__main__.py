"""Run all checks on a GPU, without pytest: `python -m tests.gpu`, or with parts of their names."""

import argparse
import sys
import time
import traceback

import torch

from tests.gpu.checks import CHECKS


def main() -> int:
    """Run the checks, and return how many failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="only checks whose names contain one of these")
    parser.add_argument("--device", default="cuda", help="cpu tries the checks themselves")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("There is no GPU here.")
        return 1
    asked = options.parts or [""]
    chosen = [name for name in CHECKS if any(part in name for part in asked)]
    failed = []
    for name in chosen:
        start = time.perf_counter()
        try:
            CHECKS[name](options.device)
        except Exception:
            failed.append(name)
            traceback.print_exc()
        state = "FAILED" if name in failed else "passed"
        print(f"{state} in {time.perf_counter() - start:5.1f} s: {name}", flush=True)
    print(f"{len(chosen) - len(failed)} of {len(chosen)} checks passed. {failed or ''}")
    return min(len(failed), 125)


if __name__ == "__main__":
    sys.exit(main())
