"""Tables and figures of several seeds, from hand-written rows and resamples."""

import numpy as np
import pytest

from headlab.errors import UserError
from headlab.report.figures import _bleu_figure, write_figures
from headlab.report.resamples import Resamples, read_resamples, write_resamples
from headlab.report.rows import copy_ablated, write_rows
from headlab.report.summary import read_models
from headlab.report.tables import write_tables

from .fixtures import row
from .test_tables import cells

DRAWS = "5 of 9 sentences, seed 1"
#: By seed: BLEU of the control, of l0 and of random with 2 heads.
SEEDS = {1: (21.0, 20.0, 18.0), 2: (22.0, 20.5, 19.5), 3: (20.0, 19.5, 18.0)}


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.3, 400).round(3)


def sampled(of, **changes) -> Resamples:
    """Resamples of a row: its BLEU with noise that depends on the row alone."""
    values = of.bleu + noise(100 * of.seed + len(of.method))
    text = " ".join(f"{value:.3f}" for value in values)
    return Resamples(
        *(of.experiment, of.method, of.variant, of.scope, of.target, of.seed),
        **{"draws": DRAWS, "bleu": of.bleu, "resampled": text, **changes},
    )


def rows() -> list:
    found = []
    for seed, (control, *pruned) in SEEDS.items():
        found.append(row("none", "control-u9", None, seed=seed, bleu=control))
        for method, bleu in zip(("l0", "random"), pruned, strict=True):
            delta = bleu - control
            found.append(
                row(method, "", 2, seed=seed, bleu=bleu, reference="control-u9", delta_bleu=delta,
                    delta_low=delta - 1, delta_high=delta + 1, p_value=0.4)
            )  # fmt: skip
    return found


def expected(method: str) -> tuple[float, float, float, float, float]:
    """Mean difference, its standard deviation, both ends of its interval and p, by the book."""
    place = 1 if method == "l0" else 2
    deltas = [bleus[place] - bleus[0] for bleus in SEEDS.values()]
    mean = sum(deltas) / 3
    sd = (sum((d - mean) ** 2 for d in deltas) / 2) ** 0.5
    joint = sum(
        d + noise(100 * seed + len(method)) - noise(100 * seed + 4) for seed, d in zip(SEEDS, deltas, strict=True)
    )
    joint = np.sort(joint / 3)
    low, high = (np.interp(q * (len(joint) - 1), range(len(joint)), joint) for q in (0.025, 0.975))
    beyond = sum(abs(x) - np.abs(joint).mean() > abs(mean) for x in joint)
    return mean, sd, low, high, (beyond + 1) / (len(joint) + 1)


def test_mean_deviation_joint_interval_and_adjusted_p(tmp_path):
    write_rows(tmp_path, rows())
    write_resamples(tmp_path, [sampled(one) for one in rows()])
    models = {model.method: model for model in read_models(tmp_path)}
    by_method = {method: expected(method) for method in ("l0", "random")}
    smaller, larger = sorted(by_method, key=lambda method: by_method[method][4])
    adjusted = {smaller: 2 * by_method[smaller][4]}
    adjusted[larger] = max(adjusted[smaller], by_method[larger][4])
    for method, (mean, sd, low, high, _) in by_method.items():
        model = models[method]
        assert model.seeds == 3
        assert (model.delta, model.delta_sd) == pytest.approx((mean, sd))
        assert (model.low, model.high) == pytest.approx((low, high), abs=2e-3)
        assert model.p_value == pytest.approx(adjusted[method])


def test_the_table_has_means_and_never_the_best(tmp_path):
    write_rows(tmp_path, rows())
    write_resamples(tmp_path, [sampled(one) for one in rows()])
    write_tables(tmp_path)
    l0, random, control = cells(tmp_path)
    assert [line["n"] for line in (l0, random, control)] == ["3", "3", "3"]
    assert (l0["BLEU"], random["BLEU"], control["BLEU"]) == ("20.00 ± 0.50", "18.50 ± 0.87", "21.00 ± 1.00")
    _, _, low, high, _ = expected("l0")
    assert l0["Δ BLEU [95 %]"].startswith("−1.00 ± 0.50 [−")
    assert f"{abs(low):.2f}, −{abs(high):.2f}]" in l0["Δ BLEU [95 %]"]
    # l0: 1 is two standard deviations of 0.5; random: 2.5 is more than two of 0.5
    assert (l0["over seeds"], random["over seeds"], control["over seeds"]) == ("resolved", "resolved", "")
    text = (tmp_path / "table.md").read_text()
    assert "Holm-adjusted for the 2 models" in text and "20.50" not in text


def test_less_than_two_standard_deviations_is_not_resolved(tmp_path):
    write_rows(tmp_path, [row("l0", "", 2, seed=s, delta_bleu=d) for s, d in ((1, -1.0), (2, -2.0), (3, 0.1))])
    write_tables(tmp_path)
    assert cells(tmp_path)[0]["over seeds"] == "not resolved"


def stale(records, **changes):
    """The resamples of all rows, those of l0 with seed 2 changed, or left out without changes."""
    hit = [one.method == "l0" and one.seed == 2 for one in records]
    kept = [sampled(one) for one, other in zip(records, hit, strict=True) if not other]
    return kept + ([sampled(records[hit.index(True)], **changes)] if changes else [])


@pytest.mark.parametrize("changes", [{}, {"draws": "4 of 9 sentences, seed 1"}, {"bleu": 20.6}])
def test_resamples_that_are_missing_or_of_another_measurement_give_no_interval(tmp_path, changes):
    write_rows(tmp_path, rows())
    write_resamples(tmp_path, stale(rows(), **changes))
    models = {model.method: model for model in read_models(tmp_path)}
    assert (models["l0"].low, models["l0"].p_value) == (None, None)
    assert models["l0"].delta == pytest.approx(-1.0)
    assert models["random"].p_value == pytest.approx(expected("random")[4])  # read alone, nothing to adjust for


def test_one_seed_is_as_recorded(tmp_path):
    one = [each for each in rows() if each.seed == 1]
    write_rows(tmp_path, one)
    write_resamples(tmp_path, [sampled(each) for each in one])
    write_tables(tmp_path)
    line = cells(tmp_path)[0]
    assert (line["Δ BLEU [95 %]"], line["p"]) == ("−1.00 [−2.00, 0.00]", "0.400")
    assert not {"n", "over seeds"} & line.keys()


def test_resamples_are_replaced_by_key_and_may_be_many(tmp_path):
    assert read_resamples(tmp_path) == {}
    first, second = rows()[1], rows()[4]
    write_resamples(tmp_path, [sampled(first), sampled(second)])
    write_resamples(tmp_path, [sampled(first, resampled=" ".join(["20.001"] * 50_000))])
    found = read_resamples(tmp_path)
    assert {key[-1]: len(one.resampled) for key, one in found.items()} == {1: 50_000, 2: 400}


def test_damaged_resamples_are_told_in_one_line(tmp_path):
    write_rows(tmp_path, rows())
    write_resamples(tmp_path, [sampled(rows()[1], resampled="20.1 x")])
    with pytest.raises(UserError, match=r"resamples\.csv: row 2: resampled has something else than numbers"):
        read_models(tmp_path)


def test_the_figure_has_a_bar_of_plus_and_minus_one_standard_deviation(tmp_path):
    write_rows(tmp_path, rows())
    write_resamples(tmp_path, [sampled(one) for one in rows()])
    (ax,) = _bleu_figure(read_models(tmp_path)).axes
    bars = [segment for part in ax.collections if hasattr(part, "get_segments") for segment in part.get_segments()]
    spans = sorted((round(bar[0][1], 3), round(bar[1][1], 3)) for bar in bars)
    assert spans == [(18.5 - 0.866, 18.5 + 0.866), (19.5, 20.5)]
    assert len(write_figures(tmp_path)) == 4


def test_values_of_one_setting_are_one_series_of_the_figure(tmp_path):
    write_rows(tmp_path, [row("l0", f"lambda={x}", None, heads_kept=k) for x, k in ((0.003, 5), (0.01, 2))])
    (ax,) = _bleu_figure(read_models(tmp_path)).axes
    lines = {line.get_label(): list(line.get_xdata()) for line in ax.lines}
    assert lines["l0, lambda"] == [2, 5]


def test_an_ablation_is_told_from_the_seeds_of_the_whole_method(tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "ablations"
    target = {"": 2, "ght-c2": None}
    write_rows(
        whole, [row("gha", v, target[v], seed=s, bleu=b) for v in target for s, b in ((1, 20.0), (2, 21), (3, 22))]
    )
    write_rows(whole, [row("none", "base", None, seed=1, bleu=25.0)])
    scores = [("vote-at-start", 2, 18.9), ("paper", 2, 19.1), ("ght-c2-paper", None, 23.0), ("ght-c3", None, 9.0)]
    write_rows(folder, [row("gha", variant, target, bleu=bleu) for variant, target, bleu in scores])
    copy_ablated(whole, folder)
    write_tables(folder)
    found = {line["model"]: line["Δ from the whole method"] for line in cells(folder)}
    assert found == {  # the mean is 21 and the standard deviation 1
        "gha, vote-at-start": "−2.10, resolved",
        "gha, paper": "−1.90, not resolved",
        "gha, ght-c2-paper": "+2.00, resolved",
        "gha, ght-c3": "",
    }
