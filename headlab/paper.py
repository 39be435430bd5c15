"""What the papers printed, to stand beside what is measured here."""

from __future__ import annotations

from collections.abc import Sequence

from headlab.attention.heads import Layout

#: Voita et al. 2019, figure 7, WMT EN-RU, encoder heads only: BLEU (read off, ±0.01) by heads kept of 48.
VOITA_FIGURE_7 = {
    48: 29.60, 35: 29.70, 19: 29.56, 12: 29.45, 11: 29.45, 10: 29.45, 8: 29.27, 7: 29.15, 6: 29.21, 5: 29.08,
    3: 28.54, 2: 28.27,
}  # fmt: skip


def paper_bleu(langs: tuple[str, str], scope: Sequence[str], method: str, variant: str, layout: Layout) -> float | None:
    """The BLEU that the paper printed for a row; None where it has no such model.

    Its models translate English to Russian, with 6 encoder layers of 8 heads: its base, and what L0 gates leave of it.
    """
    alike = langs == ("en", "ru") and tuple(scope) == ("enc-self",) and layout.heads["enc-self"] == (8,) * 6
    if not alike or not (method == "l0" or variant == "base"):
        return None
    return VOITA_FIGURE_7.get(layout.count(scope))
