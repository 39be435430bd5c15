"""Differentiable subset pruning from the command line to rows; interrupted it comes to the same models."""

from __future__ import annotations

import json
import math
import shutil
import signal
from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file

from headlab.attention.heads import Head, Layout
from headlab.report.rows import read_rows

from .conftest import SMALL, write_digits
from .runner import Headlab

pytestmark = pytest.mark.integration

COMMAND = ("prune", "--method", "dsp", "--targets", "6,3", "prune.rivals={random: [3]}")


def with_the_base_of(other: Headlab, folder: Path) -> Headlab:
    """Another folder with the same corpus and base, finished."""
    write_digits(folder)
    for stage in ("data", "base"):
        shutil.copytree(other.folder / "runs" / stage, folder / "runs" / stage)
    return Headlab(folder, SMALL)


@pytest.fixture(scope="module")
def dsp(headlab: Headlab, first: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Headlab:
    return with_the_base_of(headlab, tmp_path_factory.mktemp("dsp"))


@pytest.fixture(scope="module")
def rows(dsp: Headlab) -> pd.DataFrame:
    done = dsp(*COMMAND)
    assert done.code == 0, done.stderr
    assert "Traceback" not in done.stderr
    return read_rows(dsp.folder / "results" / "adhoc" / "digits-tiny").set_index(["method", "target"])


def trained(dsp: Headlab, row: pd.Series) -> list[Path]:
    """All that a pruned model took: base, selection, itself."""
    identity = json.loads((dsp.folder / row.run / "identity.json").read_text())
    runs = dsp.folder / "runs"
    return [runs / "base" / identity["base"], runs / "select" / identity["selection"], dsp.folder / row.run]


def test_each_target_has_a_selection_of_its_own_and_the_control_of_equal_updates(dsp, rows):
    for place, target in enumerate((6, 3), start=1):
        row = rows.loc["dsp", target]
        assert (row.heads_total, row.heads_kept, row.scope) == (24, target, "enc-self dec-self enc-dec")
        assert (row.updates_selection, row.updates_finetune) == (4 * place, 3)
        assert row.reference == f"control-u{4 * place + 3}"
        made = trained(dsp, row)
        log = [json.loads(line) for line in (made[1] / "metrics.jsonl").read_text().splitlines()]
        assert [line["update"] for line in log] == list(range(1, 4 * place + 1))
        assert {line["heads_open"] for line in log} == {target}
        assert log[0]["temperature"] == pytest.approx(0.1)
        assert log[-1]["temperature"] == pytest.approx(1e-8)
        assert all(math.isfinite(line[name]) for line in log for name in ("loss", "undecided", "gap"))
        scores = json.loads((dsp.folder / row.run / "selection.json").read_text())["scores"]
        best = sorted(scores, key=lambda head: -scores[head])[:target]
        kept = Layout.from_json(json.loads((dsp.folder / row.run / "heads.json").read_text()))
        assert set(kept) == {Head.parse(head) for head in best}
        spent = [json.loads((path / "manifest.json").read_text())["wall_seconds"] for path in made]
        assert row.train_seconds == pytest.approx(sum(spent))
    random = rows.loc["random", 3]
    assert (random.updates_selection, random.updates_finetune, random.reference) == (0, 11, "control-u11")


def test_pipelined_the_model_stays_as_it_is_until_the_heads_are_chosen(dsp, rows):
    done = dsp(
        "prune", "--method", "dsp", "--target", "5", "method.dsp.mode=pipelined",
        "method.dsp.relaxation=straight_through", "--controls", "", "--results", "pipelined",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    row = read_rows(dsp.folder / "results" / "pipelined").set_index("method").loc["dsp"]
    base, select, run = trained(dsp, row)
    before, model = (load_file(path / "model.safetensors") for path in (base, run))
    state = load_file(select / "states" / "4.safetensors")
    assert state.keys() > before.keys()
    assert all(tensor.equal(state[name]) for name, tensor in before.items())
    assert not model["encoder.layers.0.fc1.weight"].equal(before["encoder.layers.0.fc1.weight"])
    assert (row.heads_kept, row.updates_selection, row.updates_finetune) == (5, 4, 3)


def test_killed_in_a_selection_it_ends_with_the_same_models(dsp, rows, tmp_path):
    again = with_the_base_of(dsp, tmp_path)
    done = again.interrupt(
        signal.SIGKILL, lambda: any((tmp_path / "runs" / "select").glob("*/checkpoints/5.pt")), *COMMAND
    )
    assert done.code == -signal.SIGKILL
    done = again(*COMMAND)
    assert done.code == 0, done.stderr
    assert "going on" in done.stderr
    names = [path.relative_to(tmp_path) for path in (tmp_path / "runs").rglob("*.safetensors")]
    assert len([name for name in names if name.parts[1] in ("select", "pruned")]) == 2 + 3
    for name in names:
        assert (tmp_path / name).read_bytes() == (dsp.folder / name).read_bytes(), name
