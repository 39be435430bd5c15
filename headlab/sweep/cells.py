"""The cells of a sweep: every one composed and checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headlab.checks import scope_of, targets_of
from headlab.compose import compose
from headlab.config import Config
from headlab.errors import UserError
from headlab.sweep.expansion import expand


@dataclass(frozen=True)
class Cell:
    """One command of a sweep: ``headlab verb overrides``; ``label`` is what tells it from the others."""

    verb: str  # train | prune
    label: str
    overrides: tuple[str, ...]
    cfg: Config


def cells_of(verb: str, overrides: list[str]) -> list[Cell]:
    """The cells that ``overrides`` with lists stand for; raise UserError with all that is wrong in any of them."""
    choices, axes = expand(overrides)
    if fixed := [key for key in axes if key == "launcher" or key.startswith(("launcher.", "runs_dir"))]:
        raise UserError(*(f"{key}: is the same for all cells of a sweep; give one value" for key in fixed))
    ends = [key.rpartition(".")[2] for key in axes]
    short = {key: end if ends.count(end) == 1 else key for key, end in zip(axes, ends, strict=True)}
    cells: dict[tuple[str, ...], Cell] = {}
    wrong: dict[str, list[str]] = {}
    for choice in choices:
        label = " ".join(f"{short[key]}={choice[key]}" for key in axes if key in choice) or verb
        given = tuple(f"{key}={text}" for key, text in choice.items())
        try:
            cells[given] = Cell(verb, label, given, compose(list(given), verb))
        except UserError as error:
            for line in error.problems:
                wrong.setdefault(line, []).append(label)
    if wrong:
        raise UserError(*(_told(line, labels, len(choices)) for line, labels in wrong.items()))
    return _told_apart(list(cells.values()), axes, short)


def _told_apart(cells: list[Cell], axes: list[str], short: dict[str, str]) -> list[Cell]:
    """Give cells whose rows would replace each other a ``variant`` that says in what they differ."""
    alike: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        alike.setdefault(_rows_of(cell.cfg), []).append(cell)
    told: dict[str, Cell] = {}
    for same in alike.values():
        given = [dict(text.split("=", 1) for text in cell.overrides) for cell in same]
        differ = [key for key in axes if len({one.get(key) for one in given}) > 1]
        for cell, one in zip(same, given, strict=True):
            parts = [f"{short[key]}={one[key]}" for key in differ if key in one]
            variant = "-".join(part for part in [cell.cfg.variant, *parts] if part).replace("/", "_")
            overrides = (*(text for text in cell.overrides if not text.startswith("variant=")), f"variant={variant}")
            told[cell.label] = cell if not parts else replace(
                cell, overrides=overrides, cfg=replace(cell.cfg, variant=variant)
            )  # fmt: skip
    return [told[cell.label] for cell in cells]


def _rows_of(cfg: Config) -> tuple[Any, ...]:
    """What is the same of two cells that write the same rows."""
    where = cfg.results_dir, cfg.results, cfg.data.name, cfg.model.name, cfg.base
    return *where, cfg.method.name, cfg.variant, scope_of(cfg), tuple(targets_of(cfg)), cfg.seed


def _told(line: str, labels: list[str], cells: int) -> str:
    """An error with the cells that have it, unless all have."""
    if len(labels) == cells:
        return line
    others = len(labels) - 1
    more = f" and {others} more" if others else ""
    return f"{labels[0]}{more}: {line}"
