"""The cells of a sweep: every one composed and checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass

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
    return list(cells.values())


def _told(line: str, labels: list[str], cells: int) -> str:
    """An error with the cells that have it, unless all have."""
    if len(labels) == cells:
        return line
    others = len(labels) - 1
    more = f" and {others} more" if others else ""
    return f"{labels[0]}{more}: {line}"
