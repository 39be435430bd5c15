"""From the command line to the table, and what is found again afterwards."""

from __future__ import annotations

import getpass
import json
import re
import socket
from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file

from headlab.attention.heads import Layout
from headlab.report.rows import read_rows

from .conftest import SMALL
from .runner import Done, Headlab

pytestmark = pytest.mark.integration


def folders(headlab: Headlab, pattern: str) -> list[Path]:
    return sorted(path.parent for path in (headlab.folder / "runs").glob(f"{pattern}/DONE"))


def rows(headlab: Headlab) -> pd.DataFrame:
    return read_rows(headlab.folder / "results" / "adhoc" / "digits-tiny")


def only(source: Headlab | pd.DataFrame, **wanted: object) -> pd.Series:
    found = rows(source) if isinstance(source, Headlab) else source
    for column, value in wanted.items():
        found = found[found[column] == value]
    assert len(found) == 1, found
    return found.iloc[0]


def selection_of(headlab: Headlab, row: pd.Series) -> str:
    """The name of the selection that a pruned model branched off."""
    return json.loads((headlab.folder / row.run / "identity.json").read_text())["selection"]


def finished(done: Done) -> Done:
    assert done.code == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(autouse=True)
def _after_the_first_run(first: pd.DataFrame) -> None:
    pass


def test_one_command_leaves_rows_table_and_figures(headlab, first):
    folder = headlab.folder / "results" / "adhoc" / "digits-tiny"
    names = {path.name for path in folder.iterdir()}
    assert {"rows.csv", "table.md", "table.tex", "bleu_vs_heads.png", "heads.png", "manifest.json"} <= names
    base, three, one = (only(first, variant="base"), only(first, target=3), only(first, target=1, method="l0"))
    assert (base.heads_kept, three.heads_kept, one.heads_kept) == (8, 3, 1)
    assert set(first.heads_total) == {8}
    assert (three.kept_enc_self, three.kept_dec_self, three.kept_enc_dec) == (3, 8, 8)
    # selection goes on from 3 to 1; each row is beside the control of as many updates
    assert (three.updates_selection, three.updates_finetune, three.reference) == (4, 3, "control-u7")
    assert (one.updates_selection, one.updates_finetune, one.reference) == (8, 3, "control-u11")
    rival = only(first, method="random")
    assert (rival.heads_kept, rival.updates_selection, rival.updates_finetune) == (1, 0, 11)
    assert rival.reference == "control-u11"
    for row in (three, one, rival):
        control = only(first, variant=row.reference)
        assert row.delta_bleu == pytest.approx(row.bleu - control.bleu, abs=1e-6)
        assert row.delta_low <= row.delta_bleu <= row.delta_high
        assert 0 <= row.p_value <= 1
        assert row.speedup > 0


def test_the_row_tells_the_size_of_the_saved_model(headlab, first):
    for _, row in first.iterrows():
        tensors = load_file(headlab.folder / row.run / "model.safetensors")
        assert row.params == sum(t.numel() for t in tensors.values())
        tables = sum(t.numel() for name, t in tensors.items() if "embed_tokens" in name)
        assert row.params_no_embeddings == row.params - tables
        layout = Layout.from_json(json.loads((headlab.folder / row.run / "heads.json").read_text()))
        assert row.layout == str(layout)


def test_the_papers_figures_stand_beside_models_of_its_shape_alone(headlab, first):
    assert first.paper_bleu.isna().all()  # 3 of 8 heads that copy digits are not 3 of 48 of WMT


def test_with_encoder_heads_alone_the_decoder_stays_as_it_is(headlab, first):
    before = load_file(headlab.folder / only(first, variant="base").run / "model.safetensors")
    after = [only(first, target=3), only(first, method="random"), only(first, variant="control-u11")]
    for row in after:
        tensors = load_file(headlab.folder / row.run / "model.safetensors")
        for name, tensor in tensors.items():
            if name.startswith("decoder."):
                assert tensor.equal(before[name]), (row.run, name)
        assert not tensors["encoder.embed_tokens.weight"].equal(before["encoder.embed_tokens.weight"])


def test_a_run_directory_is_complete_and_names_nobody(headlab, first):
    for folder in folders(headlab, "*/*"):
        if folder.parent.name != "data":
            assert not (folder / "checkpoints").exists(), folder
        record = json.loads((folder / "manifest.json").read_text())
        for key in ("command", "git", "versions", "hardware", "threads", "precision", "seed", "inputs", "wall_seconds"):
            assert key in record, (folder, key)
        if folder.parent.name != "data":
            assert (record["threads"], record["precision"], record["seed"]) == (1, "fp32", 1)
        text = (folder / "manifest.json").read_text() + (folder / "config.yaml").read_text()
        assert str(headlab.folder) not in text
        assert socket.gethostname() not in text
        if len(getpass.getuser()) > 4:
            assert getpass.getuser() not in text
    select = headlab.folder / "runs" / "select" / selection_of(headlab, only(first, target=3))
    log = [json.loads(line) for line in (select / "metrics.jsonl").read_text().splitlines()]
    wanted = {"update", "loss", "method_loss", "heads_open", "expected_l0", "undecided", "lambda", "tokens_per_s"}
    assert all(wanted <= line.keys() for line in log)
    assert [line["update"] for line in log] == list(range(1, 9))


def test_a_second_start_finds_everything_finished(headlab):
    models = {p: p.stat().st_mtime_ns for p in (headlab.folder / "runs").rglob("*.safetensors")}
    table = headlab.folder / "results" / "adhoc" / "digits-tiny" / "rows.csv"
    before = table.read_bytes()
    done = finished(headlab("prune", "--targets", "3,1", "prune.rivals={random: [1]}"))
    assert table.read_bytes() == before
    assert {p: p.stat().st_mtime_ns for p in (headlab.folder / "runs").rglob("*.safetensors")} == models
    said = [line.removesuffix(": finished") for line in done.stderr.splitlines() if line.endswith(": finished")]
    assert sorted(said) == sorted(str(f.relative_to(headlab.folder)) for f in folders(headlab, "*/*"))
    assert "starting" not in done.stderr
    assert "translating" not in done.stderr


def test_settings_that_change_no_result_find_the_same_runs(headlab):
    count = len(folders(headlab, "*/*"))
    finished(
        headlab("prune", "--targets", "3,1", "optim.log_every=7", "optim.checkpoint_every=3", "--keep-checkpoints")
    )
    assert len(folders(headlab, "*/*")) == count


def test_no_heads_and_all_heads_are_targets_too(headlab):
    finished(headlab("prune", "--targets", "8,0"))
    for target in (0, 8):
        row = only(headlab, method="l0", target=target)
        assert (row.heads_kept, row.heads_total) == (target, 8)


def test_rivals_without_a_target_of_the_method_are_refused(headlab):
    done = headlab("prune", "--target", "3", "prune.rivals={random: [2]}")
    assert done.code == 2
    assert len(done.stderr.splitlines()) == len(done.errors) == 1
    assert "prune.rivals.random: 2 is not among the targets" in done.errors[0]


@pytest.mark.parametrize("target", ["9", "-1", "ten"])
def test_an_impossible_target_is_refused_in_one_line(headlab, target):
    done = headlab("prune", "--target", target)
    assert done.code == 2
    assert len(done.stderr.splitlines()) == len(done.errors) == 1
    assert f"prune.target={target}" in done.errors[0]


def test_a_fixed_penalty_keeps_as_many_heads_as_it_leaves_open(headlab):
    finished(headlab("prune", "--penalty", "0.5", "method.l0.lr=0.6", "prune.selection_updates=12"))
    row = only(headlab, variant="lambda=0.5")
    selection = json.loads((headlab.folder / row.run / "selection.json").read_text())
    assert row.heads_kept == selection["kept"] == sum(score > 0 for score in selection["scores"].values())
    assert 0 <= row.heads_kept < 8
    assert pd.isna(row.target)
    assert (row.updates_selection, row.updates_finetune) == (12, 3)
    select = headlab.folder / "runs" / "select" / selection_of(headlab, row)
    log = [json.loads(line) for line in (select / "metrics.jsonl").read_text().splitlines()]
    assert {line["lambda"] for line in log} == {0.5}


def test_a_penalty_and_a_target_together_are_refused(headlab):
    done = headlab("prune", "--penalty", "0.5", "--target", "3")
    assert done.code == 2
    assert len(done.errors) == 1


def test_with_all_kinds_in_scope_the_decoder_is_pruned_and_trained(headlab, first):
    finished(headlab("prune", "--target", "5", "--scope", "enc-self,dec-self,enc-dec"))
    row = only(headlab, target=5)
    assert (row.heads_total, row.heads_kept, row.scope) == (24, 5, "enc-self dec-self enc-dec")
    assert row.kept_enc_self + row.kept_dec_self + row.kept_enc_dec == 5
    base = headlab.folder / only(first, variant="base").run
    name = "decoder.embed_tokens.weight"
    tensors = load_file(headlab.folder / row.run / "model.safetensors")
    assert not tensors[name].equal(load_file(base / "model.safetensors")[name])


def test_a_scratch_model_has_the_pruned_layout_and_as_many_updates(headlab):
    finished(headlab("prune", "--target", "3", "prune.controls=[control,scratch]"))
    row, twin = only(headlab, variant="scratch"), only(headlab, method="l0", target=3, scope="enc-self")
    assert row.layout == twin.layout
    (folder,) = folders(headlab, "scratch/*")
    log = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert log[-1]["update"] == 40 + 4 + 3
    assert log[0]["lr"] == pytest.approx(2e-3 / 10)  # its own warm-up, of a base
    assert row.updates_base + row.updates_selection + row.updates_finetune == 47


def test_the_best_states_may_be_averaged_instead_of_the_last(headlab):
    done = headlab(
        "prune", "--targets", "3,1", "optim.average_rule=best", "optim.updates=12", "optim.validate_every=3",
        "optim.log_every=2", "--results", "best",
    )  # fmt: skip
    finished(done)


def test_folded_gates_that_are_closed_are_told_in_one_line_or_avoided(headlab):
    done = headlab("prune", "--targets", "1,0", "method.l0.fold=gate", "method.l0.lr=3.0", "method.l0.init=paper")
    assert "Traceback" not in done.stderr
    assert done.code == 0 or len(done.errors) == 1


def test_no_fine_tuning_is_possible(headlab):
    finished(headlab("prune", "--target", "2", "prune.finetune_updates=0"))
    row = only(headlab, target=2, method="l0")
    select = headlab.folder / "runs" / "select" / selection_of(headlab, row)
    state, model = (
        load_file(path)
        for path in (select / "states" / "4.safetensors", headlab.folder / row.run / "model.safetensors")
    )
    assert model["encoder.layers.0.fc1.weight"].equal(state["encoder.layers.0.fc1.weight"])


def test_a_named_base_is_pruned_and_a_pruned_one_is_not_asked_for_more_than_it_has(headlab, first):
    one = only(first, method="l0", target=1).run
    machine = tuple(a for a in SMALL if a.startswith(("machine.", "score.", "prune.")))
    table = headlab.folder / "results" / "adhoc" / "digits-tiny" / "rows.csv"
    before = table.read_bytes()
    finished(headlab.bare("prune", "--base", one, "--target", "0", *machine))
    assert table.read_bytes() == before  # rows of another base do not take the place of these
    found = read_rows(table.parent.with_name(f"digits-tiny-{Path(one).name}"))
    assert (only(found, variant="base").heads_kept, only(found, target=0).heads_kept) == (1, 0)
    done = headlab.bare("prune", "--base", one, "--target", "2", *machine)
    assert "Traceback" not in done.stderr
    assert done.code == 2
    assert len(done.errors) == 1
    assert "starting" not in done.stderr


@pytest.mark.parametrize("controls", [("--controls", ""), ("prune.controls=[]",)])
def test_a_control_can_be_done_without(headlab, controls):
    finished(headlab("prune", "--target", "3", *controls, "--results", "alone"))
    found = read_rows(headlab.folder / "results" / "alone")
    assert len(found) == 2
    assert pd.isna(only(found, target=3).delta_bleu)


def test_a_report_is_made_again_from_the_rows(headlab):
    folder = headlab.folder / "results" / "adhoc" / "digits-tiny"
    text = (folder / "table.md").read_text()
    (folder / "table.md").unlink()
    assert re.search(r"\| l0 +\| +1/8 \|", text)
    from headlab.report import make_report

    make_report(folder)
    assert (folder / "table.md").read_text() == text
