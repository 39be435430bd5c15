"""Write the learning curve of a run as CSV: python scripts/learning_curve.py runs/base/NAME results/en_ru/curve.csv."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd

from headlab.runs import atomic_write


def main(run: Path, out: Path) -> None:
    """The lines of ``metrics.jsonl`` at which valid was measured: losses in nats per target token."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    curve = pd.DataFrame([line for line in lines if "valid_loss" in line])
    atomic_write(out, curve[["update", "epoch", "lr", "loss", "valid_loss"]].to_csv(index=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
