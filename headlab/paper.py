"""What the papers printed, to stand beside what is measured here."""

from __future__ import annotations

from collections.abc import Sequence

from headlab.attention.heads import KINDS, Layout

#: Voita et al. 2019, figure 7, WMT EN-RU, encoder heads only: BLEU (read off, ±0.01) by heads kept of 48.
VOITA_FIGURE_7 = {
    48: 29.60, 35: 29.70, 19: 29.56, 12: 29.45, 11: 29.45, 10: 29.45, 8: 29.27, 7: 29.15, 6: 29.21, 5: 29.08,
    3: 28.54, 2: 28.27,
}  # fmt: skip

#: Ni et al. 2023, tables 1 and 3: the columns (IWSLT14, then WMT14, which table 3 lacks), and BLEU by method and
#: variant as rows are labelled here.
NI_IWSLT14 = [("de", "en"), ("it", "en"), ("en", "de"), ("en", "it"), ("en", "fr")]
NI_WMT14 = [("en", "de"), ("en", "fr")]
NI_TABLES = {
    ("none", "base"): (34.4, 32.3, 28.0, 30.8, 40.1, 27.3, 38.1),
    ("none", "lite1"): (33.8, 31.9, 27.9, 29.3, 39.9, 26.9, 37.7),
    ("none", "lite2"): (34.0, 32.2, 28.2, 29.5, 40.0, 26.7, 37.8),
    ("l0", ""): (32.2, 30.8, 26.5, 30.3, 39.8, 22.0, 34.0),  # as run by Ni et al.
    ("dsp", ""): (33.2, 31.3, 27.5, 30.0, 39.7, 20.5, 33.6),  # as run by Ni et al.
    ("gha", "ght-c2"): (35.4, 32.8, 29.1, 31.6, 41.5, 28.6, 40.7),
    ("gha", ""): (35.2, 32.7, 28.9, 31.6, 41.4, 28.2, 40.5),
    ("gha", "ght-c2-without-diversifying"): (34.7, 31.8, 28.5, 30.7, 40.7),
    ("gha", "ght-c2-without-homogenising"): (34.3, 32.0, 28.2, 30.9, 40.2),
    ("gha", "vote-at-start"): (33.8, 31.9, 28.1, 30.5, 39.8),
    ("gha", "vote-after-base"): (34.0, 32.0, 28.4, 31.0, 40.2),
    ("gha", "random-heads"): (33.7, 32.0, 28.1, 30.9, 40.3),
    ("gha", "random-members"): (33.6, 31.7, 27.9, 30.7, 40.2),
    ("gha", "constraint-in-second"): (33.2, 31.8, 28.1, 30.8, 40.3),
    ("gha", "constraint-in-both"): (33.4, 31.9, 27.7, 30.6, 40.2),
}


def paper_bleu(
    corpus: str, langs: tuple[str, str], scope: Sequence[str], method: str, variant: str, layout: Layout
) -> float | None:
    """The BLEU that a paper printed for a row; None where it has no such model.

    Voita et al. translate English to Russian with 6 encoder layers of 8 heads: their base, and what L0 gates leave
    of it. Ni et al. have 6 + 6 layers of 8 heads and keep two heads of each layer, in two pairs of WMT14 (a ``corpus``
    that is called so) and five of IWSLT14 (all others).
    """
    if tuple(scope) == ("enc-self",):
        alike = langs == ("en", "ru") and layout.heads["enc-self"] == (8,) * 6
        theirs = variant == "base" or (method == "l0" and not variant.endswith("untuned"))
        return VOITA_FIGURE_7.get(layout.count(scope)) if alike and theirs else None
    printed = NI_TABLES.get((method, variant))
    pairs, first = (NI_WMT14, len(NI_IWSLT14)) if corpus.startswith("wmt14") else (NI_IWSLT14, 0)
    if printed is None or langs not in pairs or tuple(scope) != KINDS:
        return None
    if not variant.startswith("lite"):  # whose shape follows from that of the others
        whole = method == "none" or variant.startswith("ght")
        if layout.total() != 144 or layout.count() != (144 if whole else 36):
            return None
    column = first + pairs.index(langs)
    return printed[column] if column < len(printed) else None
