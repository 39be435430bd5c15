"""Rank correlations of the scores that methods give the heads of one base."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from scipy.stats import spearmanr

from headlab.report import make_report
from headlab.report.maps import ranks_figure
from headlab.report.orders import HeadScore, correlations, passes_text, read_scores, write_agreements, write_scores
from headlab.report.rows import write_rows

from .fixtures import row

A = [0.1, 0.9, 0.4, 0.3, 0.8, 0.2]
B = [1.0, 6.0, 3.0, 4.0, 5.0, 2.0]
TIES = [1.0, 1.0, 0.0, 2.0, 2.0, 2.0]


def scores(method: str, values: list[float], seed: int = 1, target: int | None = None, passes: int = 0):
    heads = [("enc-self", layer, head) for layer in range(2) for head in range(3)]
    return [
        HeadScore("exp", method, "", "enc-self", target, seed, *head, value, passes)
        for head, value in zip(heads, values, strict=True)
    ]


def agreements(folder: Path) -> dict[tuple[int, str, str], float]:
    path = write_agreements(folder)
    assert path is not None
    frame = pd.read_csv(path)
    return {(r.seed, r["first"], r["second"]): r.spearman for _, r in frame.iterrows()}


def test_the_correlation_is_one_minus_six_sums_of_squares(tmp_path):
    """No ties: rho = 1 - 6 sum d^2 / (n (n^2 - 1)); here the ranks differ by one twice, so 1 - 12 / 210."""
    write_scores(tmp_path, [*scores("gradient", A), *scores("lrp", B), *scores("magnitude", [-a for a in A])])
    found = agreements(tmp_path)
    assert found[1, "gradient", "lrp"] == pytest.approx(1 - 12 / 210)
    assert found[1, "gradient", "magnitude"] == pytest.approx(-1)


def test_ties_count_as_their_mean_rank(tmp_path):
    write_scores(tmp_path, [*scores("gradient", A), *scores("gha", TIES, target=3)])
    assert agreements(tmp_path)[1, "gha (3)", "gradient"] == pytest.approx(spearmanr(A, TIES).statistic)


def test_seeds_have_bases_of_their_own(tmp_path):
    write_scores(tmp_path, [*scores("gradient", A), *scores("lrp", B), *scores("gradient", A, 2), *scores("lrp", A, 2)])
    found = agreements(tmp_path)
    assert found == {(1, "gradient", "lrp"): pytest.approx(1 - 12 / 210), (2, "gradient", "lrp"): pytest.approx(1)}
    frame = read_scores(tmp_path)
    assert frame is not None
    ((name, matrix),) = correlations(frame)
    assert name == "exp (enc-self)"
    assert matrix.loc["lrp", "gradient"] == pytest.approx(1 - 6 / 210)  # the mean of both


def test_one_score_for_all_heads_has_no_correlation(tmp_path):
    write_scores(tmp_path, [*scores("gradient", A), *scores("lrp", [1.0] * 6)])
    assert pd.isna(agreements(tmp_path)[1, "gradient", "lrp"])


def test_one_method_alone_makes_no_file(tmp_path):
    assert write_agreements(tmp_path) is None
    write_scores(tmp_path, scores("gradient", A))
    assert write_agreements(tmp_path) is None


def test_the_map_of_an_ordering_shows_the_mean_rank_of_every_head(tmp_path):
    """Two seeds: of six heads the first is ranked 1 and 6, so 1/6 and 1; the second 6 and 5."""
    other = [9.0, 8.0, 1.0, 2.0, 3.0, 4.0]
    write_scores(tmp_path, [*scores("lrp", A), *scores("lrp", other, 2), *scores("gradient", B)])
    frame = read_scores(tmp_path)
    assert frame is not None
    shown = {ax.get_title(): np.asarray(ax.images[0].get_array()) for ax in ranks_figure(frame).axes if ax.images}
    assert list(shown) == ["gradient", "lrp"]
    assert shown["lrp"].shape == (2, 3, 3)
    none, own = np.array(to_rgb("#E6E6E6")), np.array(to_rgb("#0072B2"))
    for head, rank in ((0, (1 / 6 + 1) / 2), (1, (1 + 5 / 6) / 2)):
        assert np.allclose(shown["lrp"][0, head], none + rank * (own - none))


def test_the_report_has_the_figure_the_file_and_the_passes(tmp_path):
    write_rows(tmp_path, [row("none", "base", None), row("l0", "", 3), row("l0", "untuned", 3)])
    write_scores(tmp_path, [*scores("gradient", A, passes=10), *scores("lrp", B, passes=1), *scores("random", TIES)])
    written = {path.name for path in make_report(tmp_path)}
    assert {
        "orderings.csv",
        "orderings.png",
        "orderings.pdf",
        "ranks.png",
        "untuned.png",
        "bleu_vs_heads.png",
    } <= written
    frame = read_scores(tmp_path)
    assert frame is not None
    told = passes_text(frame)
    assert "gradient 10, lrp 1" in told
    assert "random" not in told
    before = {name: (tmp_path / name).read_bytes() for name in ("orderings.csv", "orderings.png", "table.md")}
    make_report(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_a_rerun_replaces_its_own_scores(tmp_path):
    write_scores(tmp_path, [*scores("gradient", A), *scores("lrp", B)])
    write_scores(tmp_path, [replace(one, score=0.5) for one in scores("gradient", A)])
    frame = read_scores(tmp_path)
    assert frame is not None
    assert set(frame[frame["name"] == "gradient"]["score"]) == {0.5}
    assert list(frame[frame["name"] == "lrp"]["score"]) == B
