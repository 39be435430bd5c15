"""Many runs in one command: every combination of the lists in the overrides, each in a headlab process of its own."""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headlab.errors import RunError
from headlab.progress import say
from headlab.runs import manifest, read_json, write_json
from headlab.sweep.cells import Cell


def sweep(cells: Sequence[Cell], dry_run: bool = False) -> None:
    """Run all cells that are not finished, and make the report of every folder of results that they wrote to.

    With ``dry_run``, print what would be done instead. Raises RunError where a cell failed.
    """
    # Here and not above: composing the cells, where most errors are, needs none of the libraries behind these.
    from headlab.stages import Stages
    from headlab.sweep.description import describe
    from headlab.sweep.launching import Launcher, launch
    from headlab.sweep.overview import Overview
    from headlab.sweep.units import Share, units_of

    started = time.time()
    first = cells[0].cfg
    with _alone(Path(first.runs_dir)) as lock:
        share = Share.of(first)
        corpora: list[dict[str, Any]] = []
        for cell in cells:
            if (wanted := {**asdict(cell.cfg.data), "joint": cell.cfg.model.share_all_embeddings}) not in corpora:
                corpora.append(wanted)
                Stages(cell.cfg, share.machine).data()
        units = units_of(cells)
        if dry_run:
            print("\n".join(describe(units)))
            return
        with Overview(units) as overview:
            failures = launch(units, Launcher(first.launcher, lock), share.parallel, overview)
        own = [unit for unit in units if unit.verb in ("train", "prune")]
        _report([unit.folder for unit in own], asdict(first), started)
    if failures:
        for failure in failures:
            say(f"failed: {failure.unit.name}: {failure.line}" + (f" ({failure.log})" if failure.log else ""))
        raise RunError(f"{len(failures)} of {len(units)} failed; what is finished is kept: run the same command again")


@contextmanager
def _alone(runs_dir: Path) -> Iterator[Path]:
    """Keep other sweeps out of a folder of runs; cells of one that was killed are waited for, they end themselves."""
    path = runs_dir / "sweep.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{runs_dir}: another sweep is at work there; wait for it or set runs_dir") from None
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield path


def _report(cells: Sequence[Path], cfg: dict[str, Any], started: float) -> None:
    """Table, figures and manifest of every folder of results, once, from what the finished cells wrote."""
    from headlab.pipeline import report
    from headlab.report.rows import read_rows

    folders: dict[Path, list[Path]] = {}
    for cell in cells:
        if (cell / "DONE").is_file():
            folders.setdefault(Path(read_json(cell / "rows.json")["folder"]), []).append(cell)
    repo = Path(__file__).parents[2]
    for folder, its in folders.items():
        record = manifest(sys.argv[1:], cfg, {}, started, repo if (repo / ".git").exists() else None)
        made = [read_json(cell / "manifest.json") for cell in its if (cell / "manifest.json").is_file()]
        path = folder / "manifest.json"
        before = read_json(path) if path.is_file() else {}  # of other parts of the sweep, whose rows are here too
        cells_made = [{key: one[key] for key in ("command", "git", "wall_seconds")} for one in made]
        again = [one["command"] for one in cells_made]
        record["cells"] = [one for one in before.get("cells", []) if one["command"] not in again] + cells_made
        runs = {**before.get("runs", {}), **{run: what for one in made for run, what in one["runs"].items()}}
        there = set(read_rows(folder)["run"])
        record["runs"] = {run: what for run, what in runs.items() if run in there}
        write_json(path, record)
        report(folder)
