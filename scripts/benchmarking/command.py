"""The command line of scripts/benchmark.py."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headlab.attention.heads import KINDS, Layout
from headlab.compose import compose
from headlab.config import Config
from headlab.errors import RunError, UserError
from headlab.progress import say
from headlab.runs import manifest, read_json, write_json

from .document import RATIOS, ROWS, write_profile, write_readme

if TYPE_CHECKING:
    from .rows import Benchmark

#: What is measured unless the command line says otherwise; the last setting of a key counts. The model with a quarter
#: of its heads gets more updates than an experiment gives each of its many targets.
FULL = ["experiment=en_ru", "prune.rivals={}", "prune.selection_updates=300", "prune.finetune_updates=200"]
SMOKE = ["experiment=smoke", "prune.rivals={}", "prune.selection_updates=4", "prune.finetune_updates=2"]
SMOKE += ["prune.warmup=2", "optim.updates=20"]


def main(argv: list[str] | None = None) -> int:
    """Measure, write, and return the exit code: 2 for wrong input, 1 where the programs differ or one ends."""
    arguments = _parser().parse_intermixed_args(argv)
    try:
        _measure(arguments)
    except UserError as error:
        for line in error.problems:
            print(f"benchmark: {line}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Measure headlab against stock fairseq, in turn; writes ratios.csv, manifest.json and README.md.",
        epilog="rows: profile, " + ", ".join(ROWS),
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of headlab's configuration, e.g. base=RUN")
    parser.add_argument("--rows", help="only these, separated by commas; the others stay as they are in ratios.csv")
    parser.add_argument("--pairs", type=int, help="windows of each program that are counted (5; toy size: 1)")
    parser.add_argument("--updates", type=int, help="updates in a window of training (100; toy size: 2)")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"),
        help="the folder of runs (runs): corpus and base are found there or made, whole experiments are read there",
    )  # fmt: skip
    parser.add_argument(
        "--experiment", metavar="ARGUMENTS", help="of the headlab prune that is run again (experiment=en_ru)"
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="where results go (results/benchmark)")
    parser.add_argument("--smoke", action="store_true", help="toy size: shows that it works, its figures mean nothing")
    return parser


def _measure(arguments: argparse.Namespace) -> None:
    started = time.time()
    rows = arguments.rows.split(",") if arguments.rows else ["profile", *ROWS]
    if unknown := [row for row in rows if row not in ("profile", *ROWS)]:
        raise UserError(f"--rows {','.join(unknown)}: no such row; there are profile, {', '.join(ROWS)}")
    pairs = (1 if arguments.smoke else 5) if arguments.pairs is None else arguments.pairs
    updates = (2 if arguments.smoke else 100) if arguments.updates is None else arguments.updates
    if min(pairs, updates) < 1:
        raise UserError("--pairs and --updates: give at least 1")
    out = arguments.out or Path("results/smoke/benchmark" if arguments.smoke else "results/benchmark")
    cfg = _config(arguments)

    # loaded late: it takes seconds, and --help needs none of it
    import torch

    from headlab.machine import decide

    from .rows import Benchmark
    from .turns import Stage

    machine = decide(cfg.machine, Path(cfg.runs_dir))
    torch.set_num_threads(machine.threads)
    with tempfile.TemporaryDirectory() as work:
        benchmark = Benchmark(
            cfg=cfg,
            machine=machine,
            stage=Stage(Path(cfg.runs_dir) / "benchmark", arguments.smoke),
            work=Path(work),
            out=out,
            pairs=pairs,
            updates=updates,
            experiment=_experiment(arguments),
            wide=cfg.model if arguments.smoke else compose(["model=base"], "validate").model,
        )
        checks = benchmark.checks()
        for checked in checks:
            say(checked)
        if "profile" in rows:
            say("profile")
            write_profile(out, benchmark.profile(2 if arguments.smoke else 10))
        for row in (row for row in ROWS if row in rows):
            line = benchmark.row(row)
            RATIOS.write(out, [line])
            say(f"{row}: {'-' if line.ratio is None else format(line.ratio, '.3f')}; {line.note}")
        _record(benchmark, rows, checks, started)
    say(str(write_readme(out)))


def _config(arguments: argparse.Namespace) -> Config:
    """The configuration of all rows; what is pruned keeps a quarter of all heads."""
    overrides = [
        *(SMOKE if arguments.smoke else FULL), f"runs_dir={arguments.runs}", f"prune.scope=[{','.join(KINDS)}]",
        "prune.target=1", *arguments.overrides,
    ]  # fmt: skip
    cfg = compose(overrides)
    heads = Layout.full(cfg.model.encoder_layers, cfg.model.decoder_layers, cfg.model.heads).total()
    return replace(cfg, prune=replace(cfg.prune, target=heads // 4))


def _experiment(arguments: argparse.Namespace) -> list[str]:
    """What ``headlab prune`` is given for the experiment: it makes, or finds, its own base."""
    given = arguments.experiment or ("experiment=smoke" if arguments.smoke else "experiment=en_ru")
    return [*shlex.split(given), *(each for each in arguments.overrides if not each.startswith("base="))]


def _record(benchmark: Benchmark, rows: list[str], checks: list[str], started: float) -> None:
    """Write manifest.json; rows of earlier commands that were not measured again keep what was said about them."""
    path, repo = benchmark.out / "manifest.json", Path(__file__).parents[2]
    cfg = asdict(benchmark.cfg)
    cfg["machine"] |= asdict(benchmark.machine)
    record = manifest(sys.argv[1:], cfg, benchmark.inputs(), started, repo if (repo / ".git").exists() else None)
    measured = {"git": record["git"], "pairs": benchmark.pairs, "updates": benchmark.updates}
    before = read_json(path)["rows"] if path.exists() else {}
    write_json(path, {**record, "checks": checks, "rows": before | dict.fromkeys(rows, measured)})
