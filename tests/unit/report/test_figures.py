"""The figures: drawn from the CSV files alone, the same bytes every time."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from headlab.attention.heads import KINDS
from headlab.errors import UserError
from headlab.report import make_report
from headlab.report.figures import _STYLE, _bleu_figure, write_figures
from headlab.report.maps import heads_figure
from headlab.report.rows import write_rows
from headlab.report.summary import read_models

from .fixtures import experiment, row

BLUE, GREY = "#0072B2", "#E6E6E6"


def panels(folder) -> list[np.ndarray]:
    """The pictures [layers, heads, 3] of the head map."""
    figure = heads_figure(read_models(folder), folder)
    assert figure is not None
    return [np.asarray(ax.images[0].get_array()) for ax in figure.axes if ax.images]


def test_a_report_is_made_of_the_csv_files_alone_and_is_the_same_every_time(tmp_path):
    write_rows(tmp_path, experiment())
    written = make_report(tmp_path)
    assert [path.name for path in written] == [
        "table.md", "table.tex", "bleu_vs_heads.png", "bleu_vs_heads.pdf", "heads.png", "heads.pdf",
    ]  # fmt: skip
    first = {path: path.read_bytes() for path in written}
    for path in written:
        path.unlink()
    assert {path: path.read_bytes() for path in make_report(tmp_path)} == first
    assert {path.name for path in tmp_path.iterdir()} == {*(path.name for path in written), "rows.csv", ".rows.lock"}


def test_the_map_colours_exactly_the_heads_of_the_layout(tmp_path):
    write_rows(tmp_path, [row("l0", "", 8, layout="enc-self:0=1,3;1=0 dec-self:0=2"), row("none", "base", None)])
    (picture,) = panels(tmp_path)
    blue, grey = to_rgb(BLUE), to_rgb(GREY)
    expected = [[grey, blue, grey, blue], [blue, grey, grey, grey]]
    assert np.allclose(picture, expected)


def test_the_map_stacks_the_kinds_in_scope_with_a_gap(tmp_path):
    layout = "enc-self:0=0;1= dec-self:0=;1=1 enc-dec:0=2;1="
    write_rows(tmp_path, [row("gha", "", 3, scope=" ".join(KINDS), layout=layout), row("none", "base", None)])
    (picture,) = panels(tmp_path)
    coloured = [tuple(index) for index in np.argwhere(~np.isclose(picture, picture[..., :1]).all(axis=-1)).tolist()]
    assert picture.shape == (8, 4, 3)
    assert coloured == [(0, 0), (4, 1), (6, 2)]
    assert np.allclose(picture[[2, 5]], 1)


def test_a_head_that_half_of_the_seeds_keep_is_paler(tmp_path):
    layouts = ["enc-self:0=0;1=0", "enc-self:0=0;1=1"]
    write_rows(tmp_path, [row("l0", "", 2, seed=s, layout=layout) for s, layout in enumerate(layouts)])
    (picture,) = panels(tmp_path)
    half = (np.array(to_rgb(BLUE)) + to_rgb(GREY)) / 2
    assert np.allclose(picture, [[to_rgb(BLUE), to_rgb(GREY)], [half, half]])


def test_scopes_have_panels_of_their_own_with_their_base_and_control(tmp_path):
    everywhere = " ".join(KINDS)
    rows = [row("none", "base", None, bleu=20.0), row("none", "base", None, scope=everywhere, bleu=21.0)]
    for scope, targets, control in (("enc-self", [2], 22.0), (everywhere, [12, 6], 23.0)):
        rows += [row("l0", "", t, scope=scope, bleu=control - 1, delta_bleu=-1.0) for t in targets]
    write_rows(tmp_path, rows)
    narrow, wide = _bleu_figure(read_models(tmp_path)).axes
    assert (narrow.get_xlabel(), wide.get_xlabel()) == (
        "heads kept of 8 (enc-self)", "heads kept of 24 (enc-self, dec-self, enc-dec)",
    )  # fmt: skip
    lines = [{line.get_label(): list(line.get_ydata()) for line in ax.lines} for ax in (narrow, wide)]
    assert lines[0] == {"base": [20, 20], "control of l0 (equal updates)": [22, 22], "l0": [21]}
    assert lines[1] == {"base": [21, 21], "control of l0 (equal updates)": [23, 23], "l0": [22, 22]}
    (small, *large) = panels(tmp_path)
    assert small.shape == (2, 4, 3)  # enc-self alone
    assert [picture.shape for picture in large] == [(8, 4, 3)] * 2


def test_many_methods_stand_beside_each_other_in_order(tmp_path):
    write_rows(tmp_path, [row(f"method{i}", "", 4, bleu=20.0 + i) for i in range(5)])
    (ax,) = _bleu_figure(read_models(tmp_path)).axes
    x = [line.get_xdata()[0] for line in ax.lines]
    assert x == sorted(set(x)) and x[2] == 4
    assert x[-1] / x[0] < 1.2


@pytest.mark.parametrize(
    "rows",
    [
        [row("none", "base", None)],
        [row("l0", "", 0), row("l0", "", 1)],
        [row("none", "scratch", 3), row("none", "control-u5", None)],
        [row("l0", "", 3, bleu=None, metric="perplexity", metric_value=9.5)],
        [row("l0", "", 3), replace(row("l0", "folded", 3), experiment="another")],
        [row("l0", "", 3), row("gha", "", 9, scope="enc-self dec-self enc-dec")],
        [row(f"method{i}", "", 3) for i in range(9)],
    ],
    ids=["base alone", "no heads", "scratch", "no BLEU", "two experiments", "two scopes", "many methods"],
)
def test_every_kind_of_results_can_be_drawn(tmp_path, rows, monkeypatch):
    monkeypatch.setitem(_STYLE, "savefig.dpi", 30)
    write_rows(tmp_path, rows)
    names = {path.name for path in write_figures(tmp_path)}
    drawn = {"bleu_vs_heads": True, "heads": any(each.method != "none" for each in rows)}
    drawn["untuned"] = any(each.variant == "untuned" for each in rows)
    assert names == {f"{stem}.{end}" for stem, there in drawn.items() if there for end in ("png", "pdf")}


def test_no_rows_no_report(tmp_path):
    with pytest.raises(UserError, match=r"rows\.csv: no such file"):
        make_report(tmp_path)


def test_reports_and_scores_load_neither_torch_nor_fairseq_nor_hydra():
    code = (
        "import sys, headlab.report.figures, headlab.report.tables, headlab.scoring.text, headlab.scoring.size,"
        " headlab.scoring.speed; print([m for m in ('torch', 'fairseq', 'hydra') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
