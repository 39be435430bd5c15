"""What the papers printed, to stand beside what is measured here."""

from __future__ import annotations

_ENCODER = ("enc-self",)

#: Voita et al. 2019, figure 7, WMT EN-RU, encoder heads only: BLEU (read off, ±0.01) by heads kept of 48.
VOITA_FIGURE_7 = {
    48: 29.60, 35: 29.70, 19: 29.56, 12: 29.45, 11: 29.45, 10: 29.45, 8: 29.27, 7: 29.15, 6: 29.21, 5: 29.08,
    3: 28.54, 2: 28.27,
}  # fmt: skip

#: By scope, and heads kept or "base".
PAPER_BLEU: dict[tuple[tuple[str, ...], int | str], float] = {
    (_ENCODER, "base"): VOITA_FIGURE_7[48],
    **{(_ENCODER, kept): bleu for kept, bleu in VOITA_FIGURE_7.items()},
}
