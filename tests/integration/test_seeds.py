"""Several seeds in one table: what ``make reproduce-en-ru EVIDENCE=1`` does, on a corpus of digits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sacrebleu import corpus_bleu
from safetensors.torch import load_file

from headlab.report import make_report
from headlab.report.rows import read_rows
from headlab.report.summary import read_models

from .conftest import SMALL, write_digits
from .runner import Headlab

pytestmark = pytest.mark.integration

#: One seed for all targets, more seeds for the first of them alone, and fixed penalties.
COMMANDS = [
    ("--targets", "3,1", "prune.rivals={random: [1], scratch: [3]}"),
    ("--targets", "3", "prune.rivals={scratch: [3]}", "seeds=[2,3]", "machine.jobs=2"),
    ("--penalty", "0.5"),
    ("--penalty", "0.05"),
]


@pytest.fixture(scope="module")
def headlab(tmp_path_factory: pytest.TempPathFactory) -> Headlab:
    folder = tmp_path_factory.mktemp("seeds")
    write_digits(folder)
    return Headlab(folder, SMALL)


@pytest.fixture(scope="module")
def folder(headlab: Headlab) -> Path:
    for arguments in COMMANDS:
        done = headlab("prune", *arguments, "--results", "evidence")
        assert done.code == 0, done.stderr
    return headlab.folder / "results" / "evidence"


def test_each_model_has_the_rows_that_were_asked_for(folder):
    found = read_rows(folder).fillna({"target": -1})
    seeds = found.groupby(["method", "variant", "target"])["seed"].agg(list).to_dict()
    assert {key: value for key, value in seeds.items() if "control" not in key[1]} == {
        ("none", "base", -1): [1, 2, 3],
        ("none", "scratch", 3): [1, 2, 3],
        ("l0", "", 3): [1, 2, 3],
        ("l0", "", 1): [1],
        ("l0", "lambda=0.5", -1): [1],
        ("l0", "lambda=0.05", -1): [1],
        ("random", "", 1): [1],
    }
    names = {path.name for path in folder.glob("manifest*.json")}
    assert names == {f"manifest{of}.json" for of in ("", "-seed2-3", "-lambda=0.5", "-lambda=0.05")}
    assert len(json.loads((folder / "manifest-seed2-3.json").read_text())["inputs"]) == 2  # a base each


def test_the_interval_is_that_of_the_translations_of_all_seeds(headlab, folder):
    rows = read_rows(folder)
    references = (headlab.folder / "test.yy").read_text().splitlines()
    draws = np.random.default_rng(1).choice(len(references), size=(20, len(references)))

    def bleus(run: str) -> np.ndarray:
        lines = (headlab.folder / run / "hypotheses.txt").read_text().removesuffix("\n").split("\n")
        return np.array([corpus_bleu([lines[i] for i in d], [[references[i] for i in d]]).score for d in draws])

    deltas = []
    for _, row in rows[(rows.method == "l0") & (rows.target == 3)].iterrows():
        (control,) = rows[(rows.variant == row.reference) & (rows.seed == row.seed)].run
        deltas.append(bleus(row.run) - bleus(control))
    (model,) = [m for m in read_models(folder) if m.method == "l0" and m.target == 3]
    assert model.seeds == 3
    assert (model.low, model.high) == pytest.approx(np.percentile(np.mean(deltas, axis=0), [2.5, 97.5]), abs=2e-3)


def test_targets_that_come_after_change_nothing(headlab, folder):
    done = headlab("prune", "--targets", "3,1", "prune.rivals={}", "seed=2", "--results", "longer")
    assert done.code == 0, done.stderr
    longer, shorter = (
        found[(found.method == "l0") & (found.target == 3) & (found.seed == 2)].iloc[0]
        for found in map(read_rows, (folder.parent / "longer", folder))
    )
    assert longer.run != shorter.run
    one, other = (load_file(headlab.folder / row.run / "model.safetensors") for row in (longer, shorter))
    assert longer.layout == shorter.layout
    assert all(one[name].equal(other[name]) for name in one)


def test_a_second_start_finds_all_seeds_finished(headlab, folder):
    done = headlab("prune", *COMMANDS[1], "--results", "evidence")
    assert done.code == 0 and "starting" not in done.stderr and "translating" not in done.stderr


def test_the_report_needs_the_committed_files_alone(folder, tmp_path):
    copy = tmp_path / "evidence"
    copy.mkdir()
    for path in folder.glob("*.csv"):
        shutil.copy(path, copy)
    make_report(copy)
    assert (copy / "table.md").read_text() == (folder / "table.md").read_text()
