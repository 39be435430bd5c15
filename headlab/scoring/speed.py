"""How many sentences a second models translate, measured side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


def measure_speed(
    translators: Mapping[Name, Callable[[list[str]], object]], sentences: list[str], rounds: int
) -> dict[Name, list[float]]:
    """Sentences per second of every translator in every round.

    The translators take turns (A B A B ...), so that a machine that slows down or is shared slows all of them
    alike; before that each runs once unmeasured.
    """
    for translate in translators.values():
        translate(sentences)
    speeds: dict[Name, list[float]] = {name: [] for name in translators}
    for _ in range(rounds):
        for name, translate in translators.items():
            start = time.perf_counter()
            translate(sentences)
            speeds[name].append(len(sentences) / (time.perf_counter() - start))
    return speeds
