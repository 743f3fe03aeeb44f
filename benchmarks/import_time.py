"""How long whence takes to start, beside Python itself and torch.

python benchmarks/import_time.py

Every line runs in a Python of its own, in turns; the least time of all rounds counts.
"""

import argparse
import resource
import subprocess
import sys
import time

HELP = "from whence.cli.app import app\ntry:\n    app(['--help'])\nexcept SystemExit:\n    pass"
LINES = {
    "Python alone": "",
    "import whence": "import whence",
    "whence --help": HELP,
    "import numpy": "import numpy",
    "import torch": "import torch",
    "from whence import Explainer": "from whence import Explainer",
    "import transformers": "import transformers",
}


def measure(code: str) -> tuple[float, float]:
    """Processor seconds of one run, and seconds on the clock."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="default: 7")
    rounds = parser.parse_args().rounds
    times = {name: [] for name in LINES}
    for _ in range(rounds):
        for name, code in LINES.items():
            times[name].append(measure(code))
    least = {name: [min(one) for one in zip(*each, strict=True)] for name, each in times.items()}
    alone, torch = least["Python alone"][0], least["import torch"][0]
    print("| | processor time, of Python alone | of `import torch` | seconds on the clock |")
    print("| --- | ---: | ---: | ---: |")
    for name, (processor, seconds) in least.items():
        print(f"| `{name}` | {processor / alone:.1f} | {processor / torch:.2f} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
