"""Which kinds lose their heads first: sentences and a table from hand-written layouts."""

from __future__ import annotations

from pathlib import Path

from headlab.attention.heads import KINDS
from headlab.report.kinds import dying_text, kept_table
from headlab.report.rows import Row, write_rows
from headlab.report.summary import read_models
from headlab.report.tables import write_tables

from .fixtures import row

ALL = " ".join(KINDS)


def pruned(method: str, seed: int, *kept: str, **changes) -> Row:
    """A model of 2 layers a kind; per kind the indices that are left, as in ``01|3``."""
    parts, counts = [], []
    for kind, text in zip(KINDS, kept, strict=True):
        layers = [",".join(layer) for layer in text.split("|")]
        parts.append(f"{kind}:" + ";".join(f"{place}={layer}" for place, layer in enumerate(layers)))
        counts.append(len(text) - 1)
    per_kind = dict(zip(("kept_enc_self", "kept_dec_self", "kept_enc_dec"), counts, strict=True))
    variant = changes.pop("variant", "")
    return row(
        method, variant, sum(counts), seed=seed, scope=ALL, layout=" ".join(parts), heads_kept=sum(counts), **per_kind
    )


def write(folder: Path, *rows: Row) -> None:
    write_rows(folder, [*rows, *(row("none", "base", None, seed=s, scope=ALL) for s in {one.seed for one in rows})])


def test_the_papers_order_is_found_where_it_is(tmp_path):
    write(
        tmp_path,
        pruned("l0", 1, "0|0", "01|01", "012|0123"),
        pruned("l0", 1, "|", "0|", "0|0"),
        pruned("l0", 1, "0123|01", "0123|0123", "0123|0123", variant="untuned"),  # not fine-tuned: not told of
    )
    lead, *told = dying_text(read_models(tmp_path))
    assert lead.startswith("In the paper enc-self dies first and enc-dec last. Here")
    assert told == ["l0: enc-self dies first at 13, 3 of 24; enc-dec dies last at 13, 3 of 24."]
    write_tables(tmp_path)
    assert told[0] in (tmp_path / "table.md").read_text()


def test_where_another_kind_dies_first_it_is_named_and_seeds_are_counted(tmp_path):
    write(
        tmp_path,
        pruned("l0", 1, "0|0", "01|01", "012|012"),  # 2 4 6
        pruned("l0", 2, "01|01", "0|0", "012|012"),  # 4 2 6: the mean is 3 3 6
        pruned("l0", 1, "0|", "0|0", "0|"),  # 1 2 1
        pruned("l0", 2, "0|", "|", "01|0"),  # 1 0 3: the mean is 1 1 2
        pruned("dsp", 1, "0123|0", "0|", "0|0"),  # 5 1 2
        pruned("dsp", 2, "0123|0", "0|", "0|0"),
    )
    _, dsp, l0 = dying_text(read_models(tmp_path))
    assert (
        dsp
        == "dsp: enc-self does not die first, at 8 (dec-self) of 24; enc-dec does not die last, at 8 (enc-self) of 24."
    )
    assert l0 == (
        "l0: enc-self does not die first, at 12 (enc-self and dec-self, 0 of 2 seeds),"
        " 4 (enc-self and dec-self, 0 of 2 seeds) of 24; enc-dec dies last at 12, 4 (1 of 2 seeds) of 24."
    )


def test_random_heads_equal_shares_and_narrower_scopes_have_no_order(tmp_path):
    write(
        tmp_path, pruned("random", 1, "0|0", "01|01", "012|0123"), pruned("gha", 1, "0|1", "1|1", "0|0"),
        row("l0", "", 3),
    )  # fmt: skip
    assert dying_text(read_models(tmp_path)) == []
    assert "l0" not in kept_table(read_models(tmp_path), tmp_path)


def test_the_table_has_means_over_seeds_per_kind_and_layer(tmp_path):
    write(tmp_path, pruned("l0", 1, "0|0", "01|01", "012|0123"), pruned("l0", 2, "0|01", "01|0", "0123|012"))
    line = kept_table(read_models(tmp_path), tmp_path).splitlines()[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["l0", "13 of 24", "2.5: 1 1.5", "3.5: 2 1.5", "7: 3.5 3.5"]
    assert kept_table([], tmp_path) == ""
