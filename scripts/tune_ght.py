"""Choose alpha, beta and the feature map of Grouped Head Attention on the valid set, and give the base as many trials.

    python scripts/tune_ght.py en_ru optim.updates=3000

Trains every trial with `headlab train`, one after the other (finished ones are found again), and prints them by the
BLEU of their valid translations, best first. Rows go to results/ght_tuning_<pair>/.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

from headlab.report.rows import read_rows

GROUPED = {
    f"{name}-{alpha}-{beta}": ["method=gha", f"method.gha.map={name}", f"method.gha.alpha={alpha}",
                               f"method.gha.beta={beta}", "method.gha.groups=2"]
    for name, (alpha, beta) in product("VAO", [(0.3, 0.3), (0.5, 0.5), (0.7, 0.7)])
}  # fmt: skip
BASES = {
    f"lr{lr}-dropout{dropout}": [f"optim.lr={lr}", f"model.dropout={dropout}"]
    for lr, dropout in product((3e-3, 4.5e-3, 6e-3), (0.15, 0.2, 0.25))
}


def main(pair: str, extra: list[str]) -> int:
    """Train and score all trials of ``pair`` with the settings ``extra`` on top; return the exit code."""
    results = f"ght_tuning_{pair}"
    for name, settings in {**GROUPED, **BASES}.items():
        command = [sys.executable, "-m", "headlab.cli", "train", f"data={pair}", f"results={results}",
                   f"variant={name}", *settings, *extra]  # fmt: skip
        done = subprocess.run(command)
        if done.returncode:
            return done.returncode
    rows = read_rows(Path("results") / results).sort_values("valid_bleu", ascending=False)
    for _, row in rows.iterrows():
        print(f"{row.valid_bleu:6.2f}  {row.method:5} {row.variant}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python scripts/tune_ght.py PAIR [key=value] ...")
    sys.exit(main(sys.argv[1], sys.argv[2:]))
