"""Grouped Head Attention from the command line: groups, votes, exact counts, and rows beside those of L0."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file

from headlab.attention.heads import KINDS, Layout
from headlab.report.heads import read_heads
from headlab.report.rows import read_rows

from .conftest import SMALL, write_digits
from .runner import Done, Headlab

pytestmark = pytest.mark.integration

TABLE = ("prune", "--targets", "12,11", "prune.rivals={l0: [12]}", "--controls", "control,ght,lite2")
QUICK = ("optim.updates=16", "optim.checkpoint_every=4", "--controls", "")


@pytest.fixture(scope="module")
def headlab(tmp_path_factory: pytest.TempPathFactory) -> Headlab:
    folder = tmp_path_factory.mktemp("ght")
    write_digits(folder)
    return Headlab(folder, (*SMALL, "method=gha"))


def rows(headlab: Headlab, results: str) -> pd.DataFrame:
    return read_rows(headlab.folder / "results" / results)


def votes_of(headlab: Headlab, row: pd.Series) -> dict:
    return json.loads((headlab.folder / row.run / "votes.json").read_text())


def finished(done: Done) -> Done:
    assert done.code == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done


def pruned(headlab: Headlab, results: str, *arguments: str) -> pd.Series:
    """The row of the one model with 12 of the 24 heads."""
    finished(headlab("prune", "--target", "12", "--results", results, *QUICK, *arguments))
    found = rows(headlab, results)
    found = found[(found.method == "gha") & (found.target == 12)]
    assert len(found) == 1
    row = found.iloc[0]
    assert (row.heads_kept, row.heads_total) == (12, 24)
    assert Layout.from_json(json.loads((headlab.folder / row.run / "heads.json").read_text())).count() == 12
    return row


def of_target(table: pd.DataFrame, target: int) -> pd.Series:
    """The row of the model that was pruned by vote to ``target`` heads."""
    return table[(table.method == "gha") & (table.target == target)].iloc[0]


@pytest.fixture(scope="module")
def table(headlab: Headlab) -> pd.DataFrame:
    finished(headlab("train"))
    trained = rows(headlab, "adhoc/digits-tiny")
    assert [(row.method, row.variant, row.heads_kept) for _, row in trained.iterrows()] == [("gha", "ght-c2", 24)]
    finished(headlab(*TABLE))
    return rows(headlab, "adhoc/digits-tiny")


def test_rows_of_groups_and_gates_stand_in_one_table(headlab, table):
    found = {(row.method, row.variant, row.target): row for _, row in table.fillna({"target": 0}).iterrows()}
    assert set(found) == {
        ("none", "base", 0), ("none", "control-u7", 0), ("none", "control-u11", 0), ("none", "lite2", 12),
        ("none", "lite2", 11), ("gha", "ght-c2", 0), ("gha", "ght-c2-u7", 0), ("gha", "ght-c2-u11", 0),
        ("gha", "", 12), ("gha", "", 11), ("l0", "", 12),
    }  # fmt: skip
    twelve, eleven, gates = found["gha", "", 12], found["gha", "", 11], found["l0", "", 12]
    assert (twelve.heads_kept, eleven.heads_kept, gates.heads_kept) == (12, 11, 12)
    assert (twelve.kept_enc_self, twelve.kept_dec_self, twelve.kept_enc_dec) == (4, 4, 4)  # two of every layer
    assert (twelve.updates_base, twelve.updates_selection, twelve.updates_finetune) == (40, 0, 7)
    assert (gates.updates_selection, gates.updates_finetune) == (4, 3)
    assert twelve.reference == gates.reference == "control-u7"
    assert found["gha", "ght-c2", 0].reference == "base"  # which had as many updates
    assert twelve.train_seconds > found["gha", "ght-c2", 0].train_seconds


def test_the_group_constrained_model_is_trained_on_as_what_is_cut_from_it(headlab, table):
    row, cut = table[table.variant == "ght-c2-u7"].iloc[0], of_target(table, 12)
    assert (row.heads_kept, row.reference) == (24, "control-u7")
    assert (row.updates_base, row.updates_selection, row.updates_finetune) == (40, 0, 7)
    runs = [(headlab.folder / row.run).parent, headlab.folder / cut.run]
    identities = [json.loads((run / "identity.json").read_text()) for run in runs]
    assert identities[0]["base"] == identities[1]["base"] == Path(table[table.variant == "ght-c2"].iloc[0].run).name
    logs = [(run / "metrics.jsonl").read_text().splitlines() for run in runs]
    ours, theirs = ([json.loads(line) for line in log] for log in logs)
    assert [line["lr"] for line in ours] == [line["lr"] for line in theirs]
    assert not any("method_loss" in line for line in ours)


def test_the_eleventh_target_drops_the_fewest_voted_of_the_scope(headlab, table):
    layouts, votes = {}, {}
    for target in (12, 11):
        row = of_target(table, target)
        layouts[target] = set(Layout.parse(row.layout, 4))
        votes = {
            (layer["kind"], layer["layer"], index): sum(group[place] for group in layer["votes"])
            for layer in votes_of(headlab, row)["layers"]
            for place, index in enumerate(layer["heads"])
        }
    (dropped,) = layouts[12] - layouts[11]
    assert layouts[11] < layouts[12]
    count = votes[dropped.kind, dropped.layer, dropped.index]
    assert count == min(votes[head.kind, head.layer, head.index] for head in layouts[12])


def test_votes_are_recorded_and_shown(headlab, table):
    folder = headlab.folder / "results" / "adhoc" / "digits-tiny"
    heads = read_heads(folder)
    assert heads is not None
    mine = heads[(heads.method == "gha") & (heads.target == 12)]
    assert len(mine) == 24
    batches = {int(n) for n in mine.groupby(["kind", "layer"]).votes.sum()}
    assert len(batches) == 1  # two votes of every batch in every layer
    assert mine.stays.sum() == 12
    assert list(dict.fromkeys(mine.kind)) == list(KINDS)
    assert set(heads[heads.method == "none"].variant) == {"base"}
    assert "gha, vote for 12" in (folder / "table.md").read_text()
    assert (folder / "cosines.png").exists()


def test_the_log_tells_how_groups_are_set_apart(headlab, table):
    (run,) = table[table.variant == "ght-c2"].run
    log = [json.loads(line) for line in (headlab.folder / run / "metrics.jsonl").read_text().splitlines()]
    assert all({"method_loss", "within_cos", "between_cos", "silhouette"} <= line.keys() for line in log)
    ended = [line for line in log if "group_changes" in line]
    assert len(ended) == 6  # epochs of 6 batches in 40 updates
    assert all("dunn/enc-dec.1" in line and "silhouette/enc-self.0" in line for line in ended)


def test_a_second_start_finds_everything_finished(headlab, table):
    before = (headlab.folder / "results" / "adhoc" / "digits-tiny" / "heads.csv").read_bytes()
    done = finished(headlab(*TABLE))
    assert "starting" not in done.stderr
    assert "translating" not in done.stderr
    assert (headlab.folder / "results" / "adhoc" / "digits-tiny" / "heads.csv").read_bytes() == before


def test_half_the_feed_forward_width(headlab):
    row = pruned(headlab, "lite", "method.gha.lite=true")
    found = rows(headlab, "lite")
    base = found[found.variant == "base"].iloc[0]
    assert row.variant == "lite"
    assert set(found.variant) == {"base", "lite", "ght-c2-lite"}
    tensors = load_file(headlab.folder / row.run / "model.safetensors")
    assert tensors["encoder.layers.0.fc1.weight"].shape == (16, 16)
    assert load_file(headlab.folder / base.run / "model.safetensors")["encoder.layers.0.fc1.weight"].shape == (32, 16)
    assert row.params == sum(t.numel() for t in tensors.values())


def test_the_constraint_on_a_trained_base(headlab):
    row = pruned(headlab, "from-base", "method.gha.start=base", "method.gha.map=O")
    assert (row.variant, row.updates_selection, row.updates_finetune) == ("from-base", 4, 3)
    assert set(rows(headlab, "from-base").variant) == {"base", "from-base"}  # no model but the base has all heads
    log = [json.loads(line) for line in (headlab.folder / row.run / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in log] == [5, 6, 7]  # goes on where the selection was
    assert "method_loss" not in log[0]


def test_a_vote_before_the_end_goes_on_with_the_schedule(headlab):
    row = pruned(headlab, "early", "method.gha.vote_epoch=2", "method.gha.threshold=1e-9", "--variant", "early")
    votes = votes_of(headlab, row)
    assert votes["update"] == 12  # epochs of 6 batches
    rest = (
        headlab.folder / "runs" / "rest" / json.loads((headlab.folder / row.run / "identity.json").read_text())["base"]
    )
    log = [json.loads(line) for line in (rest / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in log] == [13, 14, 15, 16]
    assert log[0]["lr"] == pytest.approx(2e-3 * (10 / 13) ** 0.5, rel=1e-3)
    assert (row.updates_base, row.updates_selection, row.updates_finetune) == (16, 0, 7)
    assert str(Layout.from_json(json.loads((rest / "heads.json").read_text()))) == row.layout == votes["layout"]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("start", ("method.gha.constraint=none", "method.gha.vote_epoch=0")),
        ("after", ("method.gha.constraint=none",)),
        ("second", ("method.gha.constraint=second",)),
        ("both", ("method.gha.constraint=both", "method.gha.vote=per_layer")),
        ("members", ("method.gha.vote=random_members", "method.gha.map=A", "method.gha.weighting=as_released")),
        ("heads", ("method.gha.vote=random_heads", "method.gha.vote_groups=3")),
    ],
)
def test_ablations(headlab, name, settings):
    row = pruned(headlab, name, *settings, "--variant", name)
    assert row.variant == (f"vote-c3-{name}" if name == "heads" else name)
    log = [json.loads(line) for line in (headlab.folder / row.run / "metrics.jsonl").read_text().splitlines()]
    assert ("method_loss" in log[0]) == (name in ("second", "both"))
    assert len(votes_of(headlab, row)["layers"][0]["votes"]) == (3 if name == "heads" else 2)


def test_too_few_heads_are_refused_in_one_line(headlab):
    done = headlab("prune", "--target", "5")
    assert done.code == 2
    assert len(done.stderr.splitlines()) == len(done.errors) == 1
    assert "5 of 24 heads: gha keeps at least one in each of the 6 layers in scope" in done.errors[0]


def test_killed_in_the_constraint_and_in_the_vote_it_ends_with_the_same_model(headlab, table, tmp_path):
    write_digits(tmp_path)
    again = Headlab(tmp_path, headlab.always)
    command = ("prune", "--target", "12", "prune.finetune_updates=3", "--controls", "")

    def reached(pattern: str):
        return lambda: any((tmp_path / "runs").glob(pattern))

    done = again.interrupt(signal.SIGKILL, reached("ght/*/checkpoints/10.pt"), *command)
    assert done.code == -signal.SIGKILL
    done = again.interrupt(signal.SIGTERM, reached("vote/*/identity.json"), *command)
    assert done.code == 128 + signal.SIGTERM
    finished(again(*command))
    row = of_target(table, 12)
    (one,) = (tmp_path / "runs" / "pruned").iterdir()
    assert (one / "model.safetensors").read_bytes() == (headlab.folder / row.run / "model.safetensors").read_bytes()
    assert Path(row.run).name == one.name
