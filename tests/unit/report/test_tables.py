"""What the tables say, and in which words."""

import re

import pytest

from headlab.attention.heads import KINDS
from headlab.errors import UserError
from headlab.report.rows import write_rows
from headlab.report.tables import write_tables

from .fixtures import experiment, row


def cells(folder) -> list[dict[str, str]]:
    """The lines of the first table of table.md by column name."""
    text = (folder / "table.md").read_text()
    lines = text[text.index("|") :].partition("\n\n")[0].splitlines()
    split = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [dict(zip(split[0], line, strict=True)) for line in split[2:]]


def table(folder, rows) -> list[dict[str, str]]:
    write_rows(folder, rows)
    write_tables(folder)
    return cells(folder)


def test_lines_are_base_methods_rival_controls_and_name_heads(tmp_path):
    lines = table(tmp_path, experiment())
    assert [(line["model"], line["heads"]) for line in lines] == [
        ("base", "8/8"),
        ("l0", "6/8"),
        ("l0", "4/8"),
        ("l0", "2/8"),
        ("random", "2/8"),
        ("control, 900 updates", "8/8"),
        ("control, 1200 updates", "8/8"),
    ]


def test_verdicts_follow_the_interval(tmp_path):
    lines = table(tmp_path, experiment())
    assert [line["within 0.5?"] for line in lines] == ["", "within 0.5", "undecided", "worse", "worse", "", ""]
    assert [line["p"] for line in lines] == ["", "0.250", "0.250", "0.250", "<0.001", "", ""]
    assert lines[1]["Δ BLEU [95 %]"] == "−0.10 [−0.49, +0.30]"
    assert lines[1]["Δ against"] == "control-u900"


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(-0.5, 0.4, "undecided"), (-0.9, -0.5, "undecided"), (0.1, 0.5, "within 0.5")]
)
def test_verdict_at_the_margin(tmp_path, low, high, verdict):
    lines = table(tmp_path, [row("l0", "", 2, delta_bleu=0.0, delta_low=low, delta_high=high, p_value=0.9)])
    assert lines[0]["within 0.5?"] == verdict


def test_a_large_p_is_never_called_equal(tmp_path):
    rows = [row("l0", "", 2, delta_bleu=0.0, delta_low=-0.9, delta_high=0.9, p_value=1.0)]
    table(tmp_path, rows)
    text = (tmp_path / "table.md").read_text()
    assert "undecided" in text and "does not show that two models are equal" in text


def test_the_papers_difference_is_its_own(tmp_path):
    assert [line["paper's Δ"] for line in table(tmp_path, experiment())][:3] == ["", "−0.15", ""]


def test_sizes_are_in_millions_and_columns_without_values_are_left_out(tmp_path):
    lines = table(tmp_path, experiment())
    assert (lines[0]["params (M)"], lines[0]["FLOPs (M)"], lines[0]["updates"]) == ("44.14", "1995", "700")
    assert "chrF" not in lines[0] and "speed-up" not in lines[0]


def test_over_seeds_means_are_shown_and_never_the_best(tmp_path):
    rows = [row("l0", "", 2, seed=s, bleu=b, delta_bleu=d) for s, b, d in [(1, 20, -1), (2, 22, -2), (3, 21, -3)]]
    rows += [row("none", "base", None, seed=s, bleu=23.0) for s in (1, 2, 3)]
    line = table(tmp_path, rows)[1]
    assert (line["n"], line["BLEU"], line["Δ BLEU [95 %]"]) == ("3", "21.00 ± 1.00", "−2.00 ± 1.00")
    assert "within 0.5?" not in line  # no interval over seeds, no verdict


def test_settings_that_differ_in_a_value_stand_beside_each_other(tmp_path):
    rows = [row("l0", f"lambda={x}", None, heads_kept=k) for x, k in (("0.003", 5), ("0.01", 2), ("0.005", 3))]
    lines = table(tmp_path, rows)
    assert [(line["model"], line["heads"]) for line in lines] == [
        ("l0, lambda=0.003", "5/8"), ("l0, lambda=0.005", "3/8"), ("l0, lambda=0.01", "2/8"),
    ]  # fmt: skip


def test_an_emergent_count_may_differ_between_seeds(tmp_path):
    rows = [row("l0", "lambda=0.01", None, seed=s, heads_kept=k) for s, k in ((1, 5), (2, 3))]
    assert table(tmp_path, rows)[0]["heads"] == "3 to 5/8"


def test_title_notes_and_layouts(tmp_path):
    table(tmp_path, experiment())
    text = (tmp_path / "table.md").read_text()
    assert text.startswith("**toy: BLEU against heads kept (scope enc-self)**\n")
    assert "BLEU: nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0." in text
    assert "control of equal updates" in text
    assert "- l0, 6/8: `enc-self:0=0,1,2,3;1=0,1`" in text


def test_scores_of_different_signatures_are_pointed_out(tmp_path):
    table(tmp_path, [row("l0", "", 2), row("l0", "", 4, bleu_signature="other")])
    assert "BLEU was computed in several ways, which do not compare" in (tmp_path / "table.md").read_text()


def test_all_kinds_in_scope_are_counted_apart(tmp_path):
    assert table(tmp_path, [row("gha", "", 10, scope=" ".join(KINDS))])[0]["heads"] == "10/24 (8+2+0)"


def test_scopes_stand_together_each_with_its_base_and_controls(tmp_path):
    rows = []
    for scope in (" ".join(KINDS), "enc-self"):
        rows += [row(method, "", 3, scope=scope) for method in ("random", "lrp")]
        rows += [row("none", variant, None, scope=scope) for variant in ("control-u9", "base")]
    found = [(line["scope"], line["model"]) for line in table(tmp_path, rows)]
    names = ["base", "lrp", "random", "control, 9 updates"]
    assert found == [(scope, name) for scope in ("enc-self", "enc-self dec-self enc-dec") for name in names]


def test_experiments_have_a_table_each(tmp_path):
    write_rows(tmp_path, [row("l0", "", 2), row("l0", "", 2, bleu=1.5)])
    other = row("l0", "", 2, bleu=9.0)
    other.experiment = "another"
    table(tmp_path, [other])
    text = (tmp_path / "table.md").read_text()
    assert text.index("**another:") < text.index("**toy:")


def test_latex_is_a_booktabs_tabular_with_its_signs_escaped(tmp_path):
    table(tmp_path, [*experiment(), row("l0", "a_b%c&d#e$f", 1)])
    text = (tmp_path / "table.tex").read_text()
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert re.fullmatch(r"\\begin\{tabular\}\{[lr]+\}\n\\toprule\n.*\\bottomrule\n\\end\{tabular\}", body, re.S)
    assert body.isascii()
    assert r"a\_b\%c\&d\#e\$f" in body
    assert "$-$0.10 [$-$0.49, +0.30]" in body
    columns = len(re.search(r"\{([lr]+)\}", body)[1])
    lines = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 9 and all(len(re.findall(r"(?<!\\)&", line)) == columns - 1 for line in lines)
    assert not re.search(r"(?<!\\)[%#_]", body)


def test_a_layout_that_cannot_be_read_names_the_file(tmp_path):
    write_rows(tmp_path, [row("l0", "", 2, layout="enc-self:0=a")])
    with pytest.raises(UserError, match=r"rows\.csv: layout of l0, seed 1"):
        write_tables(tmp_path)
