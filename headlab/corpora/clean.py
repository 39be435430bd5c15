"""Which of the package's texts are sentences worth learning from: the rules of ``data.source=package``."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

Pair = tuple[str, str]

_PLACEHOLDER = re.compile(r"[{}]|\[%|%[sd]\b|%\(")
_MARKUP = re.compile(r"</?[A-Za-z!]|`|\*\*|\]\(|://|\bwww\.|\|")

#: Why a pair can be dropped, in the order in which the rules are asked.
REASONS = (
    "placeholder",  # {name}, [%key:...%], %s
    "markup",  # HTML, Markdown, URLs, lists|of|alternatives
    "line breaks",  # whole paragraphs and lists
    "one word",
    "untranslated",  # equal but for case
    "length ratio",  # more than 3 times the words of the other side, plus 3
    "duplicate",  # equal but for case to an earlier pair
)


def normalise(text: str) -> str:
    """NFC, every run of white space one space, none at the ends."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def clean(pairs: list[Pair], counted: int) -> tuple[list[Pair], dict[str, int]]:
    """The pairs that pass, normalised and in order, and how many were dropped for each reason (all of REASONS).

    ``counted`` is the side (0 source, 1 target) on which the two words or more are counted. It is the English one in
    every pair: a German compound is one word for what English says in two, and must not be lost for it.
    """
    kept: list[Pair] = []
    seen: set[Pair] = set()
    dropped: Counter[str] = Counter()
    for raw in pairs:
        pair = (normalise(raw[0]), normalise(raw[1]))
        folded = (pair[0].casefold(), pair[1].casefold())
        reason = _objection(raw, pair, folded, counted)
        if reason is None and folded in seen:
            reason = "duplicate"
        if reason is not None:
            dropped[reason] += 1
            continue
        seen.add(folded)
        kept.append(pair)
    return kept, {reason: dropped[reason] for reason in REASONS}


def _objection(raw: Pair, pair: Pair, folded: Pair, counted: int) -> str | None:
    if any(_PLACEHOLDER.search(text) for text in pair):
        return "placeholder"
    if any(_MARKUP.search(text) for text in pair):
        return "markup"
    if any("\n" in text.strip() for text in raw):
        return "line breaks"
    words = [len(text.split()) for text in pair]
    if words[counted] < 2 or min(words) < 1:
        return "one word"
    if folded[0] == folded[1]:
        return "untranslated"
    if max(words) > 3 * min(words) + 3:
        return "length ratio"
    return None
