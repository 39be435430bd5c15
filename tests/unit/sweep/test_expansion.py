from __future__ import annotations

from typing import Any

import pytest

from headlab.errors import UserError
from headlab.sweep import expansion
from headlab.sweep.cells import cells_of
from headlab.sweep.expansion import expand


def wrong(*overrides: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        cells_of("prune", list(overrides))
    return list(caught.value.problems)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("seed=1,2", ["1", "2"]),
        ("seed=choice(3,1)", ["3", "1"]),
        ("seed=range(1,4)", ["1", "2", "3"]),
        ("optim.lr=range(0.1,0.4,0.2)", ["0.1", "0.30000000000000004"]),
        ("prune.targets=10,4", ["10", "4"]),
        ("prune.targets=[10,4]", ["[10,4]"]),
        ("prune.targets=[10,4],[2]", ["[10,4]", "[2]"]),
        ("prune.scope=[enc-self],[enc-self,enc-dec]", ["[enc-self]", "[enc-self,enc-dec]"]),
        ("prune.rivals={random: [1, 2]}", ["{random: [1, 2]}"]),
        ("data=glob([en_*],exclude=en_r*)", ["en_de", "en_fr", "en_it"]),
        ("variant='a,b',c", ["'a,b'", "c"]),
        ("runs_dir=/a b/c[1]", ["/a b/c[1]"]),
        ("variant=", [""]),
    ],
)
def test_what_is_a_list(text: str, values: list[str]) -> None:
    key, _, _ = text.partition("=")
    assert expand([text]) == ([{key: value} for value in values], [key] if len(values) > 1 else [])


def test_lists_are_combined_the_first_one_slowest() -> None:
    cells, axes = expand(["method=l0,random", "prune.target=3", "seed=1,2"])
    assert axes == ["method", "seed"]
    assert [(c["method"], c["prune.target"], c["seed"]) for c in cells] == [
        ("l0", "3", "1"), ("l0", "3", "2"), ("random", "3", "1"), ("random", "3", "2"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["optim.lr=interval(0,1)"], "optim.lr=interval(0,1): an interval has no end of values; .*"),
        (["seed=glob(*)"], "seed=glob(*): glob is for groups of files: data, .*"),
        (["data=glob(xx_*)"], "data=glob(xx_*): is a list without values"),
        (["seed=range(4,4)"], "seed=range(4,4): is a list without values"),
        (["prune.target"], "prune.target: needs a value, as in prune.target=VALUE"),
    ],
)
def test_lists_that_cannot_be_taken(overrides: list[str], line: str) -> None:
    (found,) = wrong(*overrides)
    start, dots, _ = line.partition(".*")
    assert found == line if not dots else found.startswith(start)


SWEEP = {
    "seed": [1, 2],
    "cells": [
        {"method": "l0,random", "prune.targets": [10, 4]},
        {"method": "l0", "prune.targets": [2], "prune.scope": ["enc-self", "enc-dec"]},
    ],
}


@pytest.fixture
def of_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expansion, "sweep_of", lambda name: SWEEP if name == "en_ru" else {})


def short(cells: list[dict[str, str]]) -> list[tuple[Any, ...]]:
    return [(c.get("seed"), c.get("method"), c.get("prune.targets"), c.get("prune.scope")) for c in cells]


@pytest.mark.usefixtures("of_experiment")
def test_the_lists_of_an_experiment_and_what_restricts_them() -> None:
    both = "[enc-self,enc-dec]"
    one = [("1", "l0", "[10,4]", None), ("1", "random", "[10,4]", None), ("1", "l0", "[2]", both)]
    two = [("2", *rest) for _, *rest in one]
    cells, axes = expand(["experiment=en_ru"])
    assert short(cells) == [*one, *two]
    assert axes == ["seed", "method", "prune.targets", "prune.scope"]
    assert short(expand(["experiment=en_ru", "seed=1"])[0]) == one
    assert short(expand(["experiment=en_ru", "seed=2,1"])[0]) == [*two, *one]
    assert short(expand(["experiment=en_ru", "method=random"])[0]) == [one[1], two[1]]
    assert short(expand(["experiment=en_ru", "seed=1", "prune.targets=[10, 4]", "method=l0"])[0]) == [one[0]]
    cells, axes = expand(["experiment=en_ru", "seed=1", "method=random", "optim.lr=1,2"])
    assert axes == ["optim.lr"]
    assert [cell["optim.lr"] for cell in cells] == ["1", "2"]
    assert short(expand(["experiment=en_ru,smoke", "seed=1"])[0]) == [*one, ("1", None, None, None)]
    given = ["experiment=en_ru", "seed=1", "prune.targets=[7]", "method=random"]  # that many no cell has: for all
    assert short(expand(given)[0]) == [("1", "random", "[7]", None)]
    (line,) = wrong("experiment=en_ru", "method=gha")
    assert line == "experiment=en_ru: method=gha: no cell of the experiment has this; there are l0 random"


@pytest.mark.parametrize(
    ("sweep", "line"),
    [
        ([1], "sweep: has to be a mapping from keys to lists of values"),
        ({"seed": 1}, "sweep.seed: has to be a list of values"),
        ({"seed": []}, "sweep.seed: has to be a list of values"),
        ({"cells": {"seed": 1}}, "sweep.cells: has to be a list of mappings from keys to values"),
    ],
)
def test_a_sweep_that_is_none(sweep: Any, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expansion, "sweep_of", lambda name: sweep)
    assert wrong("experiment=smoke") == [f"experiment=smoke: {line}"]


def test_every_cell_is_checked_before_anything_starts_and_all_errors_are_told() -> None:
    found = wrong("prune.target=10,49,50", "seed=1,2", "score.beam=0", "model=tiny,small")
    assert found[0] == "score.beam=0: has to be at least 1"  # of all cells alike
    text = "prune.target=49: has to be from 0 to 48, the number of heads within enc-self"
    assert f"target=49 seed=1 model=small and 1 more: {text}" in found
    text = "prune.target=10: has to be from 0 to 8, the number of heads within enc-self"
    assert f"target=10 seed=1 model=tiny and 1 more: {text}" in found
    assert len(found) == 1 + 3 + 2
    assert wrong("launcher.parallel=1,2", "prune.target=1") == [
        "launcher.parallel: is the same for all cells of a sweep; give one value"
    ]


def test_a_cell_is_a_command_of_its_own() -> None:
    cells = cells_of("prune", ["prune.targets=10,4", "method=random", "seed=1,1"])
    assert [(cell.label, cell.overrides) for cell in cells] == [
        ("targets=10", ("prune.targets=10", "method=random", "seed=1")),
        ("targets=4", ("prune.targets=4", "method=random", "seed=1")),
    ]
    assert [cell.cfg.prune.targets for cell in cells] == [[10], [4]]
    assert {cell.cfg.method.name for cell in cells} == {"random"}
    cells = cells_of("train", ["optim.lr=0.1,0.2", "prune.lr=0.1,0.2"])
    assert [cell.label for cell in cells][1] == "optim.lr=0.1 prune.lr=0.2"


def test_the_comparison_has_every_method_at_every_target_and_seed() -> None:
    cells = cells_of("prune", ["experiment=compare_en_ru"])
    assert {cell.cfg.seed for cell in cells} == {1, 2, 3}
    for method in ("l0", "random"):
        for seed in (1, 2, 3):
            own = [c.cfg.prune for c in cells if (c.cfg.method.name, c.cfg.seed) == (method, seed)]
            found = [(prune.scope, target) for prune in own for target in prune.targets or []]
            everywhere = ["enc-self", "dec-self", "enc-dec"]
            more = [(everywhere, 108)] if method == "l0" else []
            assert found == [(["enc-self"], 10), *((everywhere, target) for target in (72, 36, 18)), *more]
    assert {cell.cfg.results for cell in cells} == {"compare_en_ru"}


def test_the_updates_of_the_comparison_can_be_set_for_all_cells() -> None:
    cells = cells_of("prune", ["experiment=compare_en_ru", "prune.selection_updates=7"])
    assert {cell.cfg.prune.selection_updates for cell in cells} == {7}
    assert len(cells) == len(cells_of("prune", ["experiment=compare_en_ru"]))


def test_cells_whose_rows_would_replace_each_other_are_told_apart_by_their_variant() -> None:
    cells = cells_of("prune", ["prune.target=10", "method=l0,random", "optim.lr=0.1,0.2", "variant=x"])
    assert [cell.cfg.variant for cell in cells] == ["x-lr=0.1", "x-lr=0.2"] * 2
    assert cells[0].overrides == ("prune.target=10", "method=l0", "optim.lr=0.1", "variant=x-lr=0.1")
    kept = cells_of("prune", ["prune.target=10,4", "method=l0,random", "seed=1,2", "model=small,base"])
    assert {cell.cfg.variant for cell in kept} == {""}
