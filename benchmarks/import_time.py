"""How long whence takes to start, beside Python itself and torch.

python benchmarks/import_time.py

Every line runs in a Python of its own, in turns; the least processor time of all rounds counts.
"""

import argparse
import resource
import subprocess
import sys

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


def measure(code: str) -> float:
    """Processor seconds of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="default: 7")
    rounds = parser.parse_args().rounds
    times = {name: [] for name in LINES}
    for _ in range(rounds):
        for name, code in LINES.items():
            times[name].append(measure(code))
    alone, torch = min(times["Python alone"]), min(times["import torch"])
    print("| | of Python alone | of `import torch` |\n| --- | ---: | ---: |")
    for name, each in times.items():
        print(f"| `{name}` | {min(each) / alone:.1f} | {min(each) / torch:.2f} |")


if __name__ == "__main__":
    main()
