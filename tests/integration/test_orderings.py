"""Orderings without training from the command line: scores, exact counts, rows before fine-tuning, correlations."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file

from headlab.attention.heads import KINDS, Layout
from headlab.report.rows import read_rows

from .conftest import SMALL, write_digits
from .runner import Headlab

pytestmark = pytest.mark.integration

RIVALS = ("l0", "confidence", "lrp", "magnitude", "leave-one-out", "random")
SHORT = ("optim.updates=16", "prune.selection_updates=2", "prune.finetune_updates=2", "prune.untuned=true")
COMMAND = (
    "prune", "method=gradient", "method.gradient.rounds=2", "--targets", "12,5", "--scope", ",".join(KINDS),
    f"prune.rivals={{{', '.join(f'{name}: [5]' for name in RIVALS)}}}", *SHORT,
)  # fmt: skip


@pytest.fixture(scope="module")
def headlab(tmp_path_factory: pytest.TempPathFactory) -> Headlab:
    folder = tmp_path_factory.mktemp("orderings")
    write_digits(folder)
    done = Headlab(folder, SMALL)(*COMMAND)
    assert done.code == 0, done.stderr
    assert "Traceback" not in done.stderr
    return Headlab(folder, SMALL)


@pytest.fixture(scope="module")
def results(headlab: Headlab) -> Path:
    return headlab.folder / "results" / "adhoc" / "digits-tiny"


@pytest.fixture(scope="module")
def table(results: Path) -> pd.DataFrame:
    return read_rows(results)


def test_every_ordering_keeps_exactly_its_targets_with_equal_updates(table):
    tuned = table[(table.method != "none") & (table.variant == "")]
    assert sorted(zip(tuned.method, tuned.target, strict=True)) == sorted(
        [("gradient", 12), *((name, 5) for name in ("gradient", *RIVALS))]
    )
    assert (tuned.heads_kept == tuned.target).all()
    assert set(tuned[tuned.target == 5].reference) == {"control-u6"}
    assert set(tuned[tuned.target == 5].updates_selection + tuned[tuned.target == 5].updates_finetune) == {6}
    assert set(tuned[tuned.method == "gradient"].updates_selection) == {0}


def test_each_model_has_a_row_before_its_fine_tuning_too(headlab, table):
    untuned, tuned = table[table.variant == "untuned"], table[(table.method != "none") & (table.variant == "")]
    assert list(untuned.layout) == list(tuned.layout)
    assert set(untuned.reference) == {"base"}
    assert set(untuned.updates_finetune) == {0}
    assert set(untuned.updates_selection) == {0, 4}  # of l0
    assert untuned.speedup.isna().all()
    base = load_file(headlab.folder / table[table.variant == "base"].run.iloc[0] / "model.safetensors")
    cut = load_file(headlab.folder / untuned[untuned.method == "lrp"].run.iloc[0] / "model.safetensors")
    assert (cut["decoder.embed_tokens.weight"] == base["decoder.embed_tokens.weight"]).all()
    kept = Layout.parse(untuned[untuned.method == "lrp"].layout.iloc[0], 4).kept["enc-self"][0]
    rows = [4 * head + i for head in kept for i in range(4)]
    name = "encoder.layers.0.self_attn.v_proj.weight"
    assert (cut[name] == base[name][rows]).all()


def test_the_valid_set_is_looked_at_once_for_all_targets_and_the_passes_are_recorded(headlab, results):
    runs = {
        path.parent.name.split("-", 1)[1].rpartition("-")[0]: path for path in headlab.folder.glob("runs/score/*/DONE")
    }
    assert set(runs) == {"gradient", "confidence", "lrp", "leave-one-out"}
    passes = {"gradient": 2, "confidence": 1, "lrp": 1, "leave-one-out": 25}
    assert {
        name: json.loads((done.parent / "scores.json").read_text())["passes"] for name, done in runs.items()
    } == passes
    found = pd.read_csv(results / "head_scores.csv", keep_default_na=False)
    assert set(found.method) == {"gradient", *RIVALS}
    assert (found.groupby("method").size() == 24).all()
    assert dict(found[found.passes > 0].groupby("method").passes.max()) == passes
    assert "leave-one-out 25" in (results / "table.md").read_text()


def test_scores_decide_which_heads_stay(results, table):
    found = pd.read_csv(results / "head_scores.csv")
    for method in ("gradient", "lrp", "leave-one-out"):
        best = found[found.method == method].nlargest(5, "score")
        layout = table[(table.method == method) & (table.target == 5)].layout.iloc[0]
        kept = {(head.kind, head.layer, head.index) for head in Layout.parse(layout, 4)}
        assert kept == set(zip(best.kind, best.layer, best["head"], strict=True))


def test_the_report_makes_correlations_again_from_recorded_files(headlab, results):
    found = pd.read_csv(results / "orderings.csv")
    assert len(found) == 7 * 6 / 2
    assert found.spearman.between(-1, 1).all()
    before = (results / "orderings.csv").read_bytes()
    for name in ("orderings.csv", "orderings.png", "untuned.png"):
        (results / name).unlink()
    assert headlab.bare("report", "adhoc/digits-tiny").code == 0
    assert (results / "orderings.csv").read_bytes() == before
    assert (results / "orderings.png").exists()
    assert (results / "untuned.png").exists()


def test_a_second_start_finds_everything_finished(headlab, results):
    before = (results / "head_scores.csv").read_bytes(), (results / "rows.csv").read_bytes()
    done = headlab(*COMMAND)
    assert done.code == 0, done.stderr
    assert "starting" not in done.stderr
    assert "translating" not in done.stderr
    assert before == ((results / "head_scores.csv").read_bytes(), (results / "rows.csv").read_bytes())


def test_untuned_groups_stand_beside_the_tuned_ones(headlab):
    command = ("prune", "method=gha", "method.gha.start=base", "--target", "12", "--results", "gha", "--controls", "")
    done = headlab(*command, *SHORT)
    assert done.code == 0, done.stderr
    found = read_rows(headlab.folder / "results" / "gha")
    assert set(found.variant) == {"base", "from-base", "from-base-untuned"}
    tuned, untuned = (found[found.variant == name].iloc[0] for name in ("from-base", "from-base-untuned"))
    assert untuned.layout == tuned.layout
    assert (untuned.updates_selection, untuned.updates_finetune, untuned.reference) == (2, 0, "base")


def test_the_comparison_on_files_of_ones_own(headlab):
    done = headlab(
        "sweep", "experiment=compare_files", "seed=1", "method=l0,random", "prune.targets=[5]", "optim.updates=16",
        "prune.selection_updates=2", "prune.finetune_updates=2", "launcher.parallel=2",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    folder = headlab.folder / "results" / "compare_files"
    found = read_rows(folder)
    everywhere = " ".join(KINDS)
    models = [
        ("none", "base"),
        ("none", "control-u4"),
        *((name, v) for name in ("l0", "random") for v in ("", "untuned")),
    ]
    assert sorted(zip(found.scope, found.method, found.variant, strict=True)) == sorted(
        (scope, *model) for scope in ("enc-self", everywhere) for model in models
    )
    assert set(found[found.method != "none"].heads_kept) == {5}  # which three kinds cannot share equally
    assert set(found[found.variant == ""].reference) == {"control-u4"}
    controls, bases = (found[found.variant == name].set_index("scope") for name in ("control-u4", "base"))
    assert list(bases.run.unique()) == [bases.run.iloc[0]]  # one base ...
    assert controls.run.nunique() == 2  # ... and a control for each scope, whose decoder is frozen or not
    for _, row in found[found.variant == ""].iterrows():
        assert row.delta_bleu == pytest.approx(row.bleu - controls.bleu[row.scope])
    text = (folder / "table.md").read_text()
    assert "Random heads with fine-tuning are" in text
    assert "l0: enc-self " in text and "; enc-dec " in text
    assert {"bleu_vs_heads.png", "untuned.png", "heads.png", "orderings.png", "ranks.png", "manifest.json"} <= {
        path.name for path in folder.iterdir()
    }
