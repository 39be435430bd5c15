"""Which kinds of attention keep their heads: per kind and layer, and the order in which kinds die."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tabulate import tabulate

from headlab.attention.heads import KINDS
from headlab.report.summary import Model


def kept_table(models: Sequence[Model], folder: Path) -> str:
    """Heads left of every kind and in each of its layers, in Markdown; means over seeds.

    Of fine-tuned models that may lose heads of all kinds; empty where there are none.
    """
    lines = []
    for model in _of_all_kinds(models):
        layouts = list(model.layouts(folder).values())
        cells = []
        for kind in KINDS:
            per_layer = [
                sum(map(len, layers)) / len(layouts)
                for layers in zip(*(layout.kept[kind] for layout in layouts), strict=True)
            ]
            cells.append(f"{_number(sum(per_layer))}: {' '.join(map(_number, per_layer))}")
        lines.append([model.name, _count(model), *cells])
    if not lines:
        return ""
    header = ["heads left, of which in layers 0, 1, …", "heads", *KINDS]
    align = ("left", "right", *["left"] * len(KINDS))
    return tabulate(lines, header, tablefmt="pipe", disable_numparse=True, colalign=align)


def dying_text(models: Sequence[Model]) -> list[str]:
    """What Voita et al. 2019 report, and a sentence per method: whether ``enc-self`` dies first and ``enc-dec`` last.

    The kind that dies first is the one of whose heads, as the base has them, the smallest share is left; the last one
    that of the largest. Means over seeds decide. Left out are random heads, which die in no order, and counts at which
    all kinds have lost the same share, as with groups in every layer. Empty where there is nothing to tell.
    """
    base = next((model for model in models if model.role == "base"), None)
    whole = {kind: base.mean(_column(kind)) or 0.0 if base is not None else 0.0 for kind in KINDS}
    if not all(whole.values()):
        return []
    by_name: dict[str, list[Model]] = {}
    for model in _of_all_kinds(models):
        alike = len(_dying("first", _left(model, whole))) == len(KINDS)
        if model.method != "random" and not alike:
            by_name.setdefault(model.name, []).append(model)
    if not by_name:
        return []
    rule = "by the share of a kind's heads that is left (means over seeds; seeds are counted where not all agree)"
    return [
        f"In the paper enc-self dies first and enc-dec last. Here, {rule}:",
        *(f"{name}: {_order('enc-self', 'first', own, whole)}; {_order('enc-dec', 'last', own, whole)}."
          for name, own in by_name.items()),
    ]  # fmt: skip


def _order(kind: str, place: str, models: Sequence[Model], whole: Mapping[str, float]) -> str:
    """At which counts ``kind`` is the ``first`` or the ``last`` to die, and which kinds are at the others."""
    found: dict[bool, list[str]] = {True: [], False: []}
    for model in models:
        here = _dying(place, _left(model, whole))
        rows = model.rows.to_dict("records")
        agree = sum(_dying(place, {k: row[_column(k)] / whole[k] for k in KINDS}) == here for row in rows)
        said = [] if here == [kind] else [" and ".join(here)]
        said += [f"{agree} of {len(rows)} seeds"] if agree < len(rows) else []
        kept = _number(model.mean("heads_kept") or 0)
        found[here == [kind]].append(kept + (f" ({', '.join(said)})" if said else ""))
    of = f" of {_number(models[0].mean('heads_total') or 0)}"
    if not found[True]:
        return f"{kind} does not die {place}, at {', '.join(found[False])}{of}"
    also = f", but not at {', '.join(found[False])}" if found[False] else ""
    return f"{kind} dies {place} at {', '.join(found[True])}{also}{of}"


def _left(model: Model, whole: Mapping[str, float]) -> dict[str, float]:
    """By kind the share of heads that is left, a mean over seeds."""
    return {kind: (model.mean(_column(kind)) or 0.0) / whole[kind] for kind in KINDS}


def _dying(place: str, shares: Mapping[str, float]) -> list[str]:
    """The kinds of the smallest share (``first``) or the largest (``last``): several where they are equal."""
    extreme = min(shares.values()) if place == "first" else max(shares.values())
    return [kind for kind, share in shares.items() if abs(share - extreme) < 1e-9]


def _of_all_kinds(models: Iterable[Model]) -> list[Model]:
    """The fine-tuned models that may have lost heads of all kinds."""
    pruned = [m for m in models if m.role == "pruned" and not (m.untuned or m.whole)]
    return [model for model in pruned if set(model.scope) == set(KINDS) and all(model.rows["layout"])]


def _column(kind: str) -> str:
    return "kept_" + kind.replace("-", "_")


def _count(model: Model) -> str:
    return f"{_number(model.mean('heads_kept') or 0)} of {_number(model.mean('heads_total') or 0)}"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
