"""Rows of an experiment that never ran."""

from headlab.attention.heads import KINDS, Layout
from headlab.report.rows import Row

FULL = Layout.full(2, 2, 4)
BLEU_SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"


def row(method: str, variant: str, target: int | None, seed: int = 1, **changes) -> Row:
    """A row of a model with 2+2 layers of 4 heads, scope enc-self; pruned ones keep the first ``target`` heads."""
    scope = changes.pop("scope", "enc-self")
    kinds = scope.split()
    layout = FULL if target is None else FULL.keep(FULL.within(kinds)[:target], kinds)
    values = {
        "heads_total": FULL.total(kinds),
        "heads_kept": layout.count(kinds),
        **{"kept_" + kind.replace("-", "_"): layout.count([kind]) for kind in KINDS},
        "layout": str(layout),
        "bleu": 20.0,
        "bleu_signature": BLEU_SIGNATURE,
    }
    return Row("toy", method, variant, scope, target, seed, **{**values, **changes})


def experiment() -> list[Row]:
    """Base, control, four pruned models and a rival; in an order that no table uses."""

    def pruned(target: int, delta: float, low: float, high: float, **more) -> Row:
        return row(
            "l0", more.pop("variant", ""), target, bleu=21.0 + delta, reference="control-u900",
            delta_bleu=delta, delta_low=low, delta_high=high, p_value=more.pop("p_value", 0.25), **more,
        )  # fmt: skip

    return [
        row("random", "", 2, bleu=18.5, reference="control-u900", delta_bleu=-2.5, delta_low=-3.1, delta_high=-1.9,
            p_value=1 / 1001),
        pruned(2, -1.25, -1.6, -0.9),
        pruned(6, -0.10, -0.49, 0.3, paper_bleu=29.45),
        pruned(4, -0.30, -0.51, -0.1),
        row("none", "control-u900", None, bleu=21.0),
        row("none", "control-u1200", None, bleu=21.1),
        row("none", "base", None, bleu=20.5, paper_bleu=29.6, params_no_embeddings=44_138_496, flops=1_995_202_560,
            updates_base=700),
    ]  # fmt: skip
