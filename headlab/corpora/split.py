"""Held-out sets that share no sentence with each other or with the training set."""

from __future__ import annotations

import random
from collections.abc import Iterable

from headlab.corpora.clean import Pair
from headlab.errors import UserError

HELD_OUT_WORDS = 3  # shorter pairs say little in BLEU, which counts up to four words


def split(
    pairs: list[Pair], valid_size: int, test_size: int, seed: int, counted: int
) -> tuple[dict[str, list[Pair]], int]:
    """``{"train": ..., "valid": ..., "test": ...}`` and how many pairs were given up because they share a sentence.

    Held-out pairs have at least three words on side ``counted`` and are drawn at random, test before valid, so that
    another ``valid_size`` leaves the test set as it is. Sentences are compared regardless of case; training pairs that
    share one with a held-out pair are given up, and so is a candidate that shares one with a pair already held out.
    Training pairs keep their order. Deterministic for a seed. Raises UserError where there are too few pairs.
    """
    if valid_size < 1 or test_size < 1:
        raise UserError(f"data.valid_size={valid_size} data.test_size={test_size}: both have to be at least 1")
    candidates = [i for i, pair in enumerate(pairs) if len(pair[counted].split()) >= HELD_OUT_WORDS]
    random.Random(seed).shuffle(candidates)
    taken: list[int] = []
    sentences: set[tuple[int, str]] = set()
    for i in candidates:
        if len(taken) == valid_size + test_size:
            break
        own = _sentences(pairs[i])
        if sentences.isdisjoint(own):
            sentences.update(own)
            taken.append(i)
    train = [pair for pair in pairs if sentences.isdisjoint(_sentences(pair))]
    if len(taken) < valid_size + test_size or not train:
        raise UserError(
            f"data.valid_size={valid_size} data.test_size={test_size}: too many, the corpus has {len(pairs)} pairs "
            f"after cleaning, of which {len(taken)} can be held out, and something has to be left to train on"
        )
    sets = {
        "train": train,
        "valid": [pairs[i] for i in taken[test_size:]],
        "test": [pairs[i] for i in taken[:test_size]],
    }
    return sets, len(pairs) - len(train) - len(taken)


def _sentences(pair: Pair) -> Iterable[tuple[int, str]]:
    return [(side, text.casefold()) for side, text in enumerate(pair)]
