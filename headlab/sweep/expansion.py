"""From overrides with lists, and the ``sweep`` part of an experiment, to the overrides of every cell."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException

from headlab.compose import groups, sweep_of
from headlab.errors import UserError

#: The overrides of a cell by key; the text behind the equals sign.
Choice = dict[str, str]


def expand(overrides: list[str]) -> tuple[list[Choice], list[str]]:
    """All combinations of the lists in ``overrides``, and the keys in which they differ.

    ``key=a,b``, ``key=choice(a,b)``, ``key=range(1,4)`` and, for a group of files, ``key=glob(en_*)`` are lists, as
    Hydra's override parser reads them; ``key=[a,b]`` is one value. An experiment's own lists (its ``sweep``) come
    first; a key given here replaces its list, or picks those of its ``cells`` that have this value. A value that none
    of them has is taken by all, but for a group of files: that is refused.
    Raises UserError with all problems.
    """
    given: dict[str, list[str]] = {}
    problems: list[str] = []
    for override in overrides:
        key, equals, text = override.partition("=")
        try:
            given[key] = values_of(key, text)
        except UserError as error:
            problems += error.problems
        if not equals:
            problems.append(f"{key}: needs a value, as in {key}=VALUE")
    if problems:
        raise UserError(*problems)
    cells: list[Choice] = []
    for experiment in given.get("experiment", [""]):
        chosen = {**given, "experiment": [experiment]} if experiment else given
        try:
            cells += _combined(chosen, sweep_of(experiment) if experiment else {})
        except UserError as error:
            problems += [f"experiment={experiment}: {line}" for line in error.problems]
    if problems:
        raise UserError(*problems)
    every = dict.fromkeys(key for cell in cells for key in cell)
    return cells, [key for key in every if len({cell.get(key) for cell in cells}) > 1]


def values_of(key: str, text: str) -> list[str]:
    """The values that ``key=text`` stands for: several for a list of Hydra's, else ``text`` alone."""
    parsed = _parsed(key, text)
    if parsed is None or not parsed.is_sweep_override():
        return [text]
    if parsed.is_interval_sweep():
        raise UserError(f"{key}={text}: an interval has no end of values; write {key}=range(START,STOP,STEP) or a list")
    glob: Any = parsed.value()
    if isinstance(glob, Glob):
        if key not in groups():
            raise UserError(f"{key}={text}: glob is for groups of files: {', '.join(groups())}")
        values = glob.filter(groups()[key])
    else:
        values = list(parsed.sweep_string_iterator())
    if not values:
        raise UserError(f"{key}={text}: is a list without values")
    return values


def _combined(given: Mapping[str, list[str]], sweep: Any) -> list[Choice]:
    """The cells of one experiment: its lists outermost, then its ``cells``, then the lists that were given."""
    axes, entries = _of_experiment(sweep)
    rest = dict(given)
    for key in list(axes):
        axes[key] = rest.pop(key, axes[key])
    for key in list(rest):
        if len({entry.get(key) for entry in entries}) > 1:
            wanted = {_meaning(key, text) for text in rest[key]}
            kept = [entry for entry in entries if key in entry and _meaning(key, entry[key]) in wanted]
            if kept:
                entries, _ = kept, rest.pop(key)
            elif key in groups():  # a number is another one for all cells, but a method that none has is a mistake
                there = " ".join(dict.fromkeys(entry[key] for entry in entries if key in entry))
                raise UserError(f"{key}={','.join(rest[key])}: no cell of the experiment has this; there are {there}")
    return [
        {**outer, **entry, **inner}
        for outer in _products(axes)
        for entry in entries
        for inner in _products(rest)
    ]  # fmt: skip


def _of_experiment(sweep: Any) -> tuple[dict[str, list[str]], list[Choice]]:
    """The lists of values by key, and the combinations under ``cells`` (one empty one where there are none)."""
    if not isinstance(sweep, dict):
        raise UserError("sweep: has to be a mapping from keys to lists of values")
    axes = {str(key): value for key, value in sweep.items() if key != "cells"}
    cells = sweep.get("cells", [{}])
    problems = [
        f"sweep.{key}: has to be a list of values" for key, v in axes.items() if not isinstance(v, list) or not v
    ]
    if not isinstance(cells, list) or not cells or not all(isinstance(cell, dict) for cell in cells):
        problems.append("sweep.cells: has to be a list of mappings from keys to values")
    if problems:
        raise UserError(*problems)
    lists = [{str(k): values_of(str(k), v) if isinstance(v, str) else [_text(v)] for k, v in c.items()} for c in cells]
    entries = [entry for cell in lists for entry in _products(cell)]
    return {key: [_text(value) for value in values] for key, values in axes.items()}, entries


def _products(axes: Mapping[str, list[str]]) -> Iterable[Choice]:
    return (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


def _text(value: Any) -> str:
    """A value of YAML as it is written in an override."""
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_text(item)}' for key, item in value.items())}}}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _parsed(key: str, text: str) -> Override | None:
    """What Hydra reads, or None where it cannot: a path with blanks, or an error that composing the cell tells."""
    try:
        return OverridesParser.create().parse_override(f"{key}={text}")
    except HydraException:
        return None


def _meaning(key: str, text: str) -> str:
    """The same for two ways to write one value, such as ``[10, 4]`` and ``[10,4]``."""
    parsed = _parsed(key, text)
    return text if parsed is None else repr(parsed.value())
