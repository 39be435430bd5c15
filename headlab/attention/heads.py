"""Names of heads and layouts: which heads of a model exist. Plain Python, so reports can read it without torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: The three kinds of attention, in the order every table and every head matrix uses.
KINDS = ("enc-self", "dec-self", "enc-dec")


@dataclass(frozen=True, order=True)
class Head:
    """One attention head, written ``kind.layer.index`` and counted from 0, e.g. ``enc-self.3.5``."""

    kind: str
    layer: int
    index: int

    def __str__(self) -> str:
        return f"{self.kind}.{self.layer}.{self.index}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read ``enc-self.3.5``; raise ValueError with the valid form otherwise."""
        match = re.fullmatch(r"([a-z-]+)\.(\d+)\.(\d+)", text.strip())
        if not match or match[1] not in KINDS:
            raise ValueError(f"head '{text}': expected KIND.LAYER.INDEX with KIND one of {', '.join(KINDS)}")
        return cls(match[1], int(match[2]), int(match[3]))


def check_scope(scope: Iterable[str]) -> tuple[str, ...]:
    """Return the kinds of ``scope`` in table order; raise ValueError on an unknown kind or an empty scope."""
    wanted = list(scope)
    for kind in wanted:
        if kind not in KINDS:
            raise ValueError(f"unknown kind '{kind}': choose from {', '.join(KINDS)}")
    if not wanted:
        raise ValueError(f"the scope is empty: choose from {', '.join(KINDS)}")
    return tuple(kind for kind in KINDS if kind in wanted)


@dataclass(frozen=True)
class Layout:
    """Which heads exist: per kind and layer the kept original indices, beside the count before pruning.

    ``kept[kind][layer]`` is a sorted tuple of original head indices; ``heads[kind][layer]`` is the number
    of heads that layer had when the base was built.
    """

    kept: Mapping[str, tuple[tuple[int, ...], ...]]
    heads: Mapping[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        if self.kept.keys() != self.heads.keys() or not self.kept.keys() <= set(KINDS):
            found = ", ".join(sorted({*self.kept, *self.heads}))
            raise ValueError(f"layout: has {found}, not the same kinds of {', '.join(KINDS)} in both of its parts")
        for kind, layers in self.kept.items():
            for number, (indices, total) in enumerate(zip(layers, self.heads[kind], strict=True)):
                if list(indices) != sorted(set(indices)) or any(not 0 <= i < total for i in indices):
                    raise ValueError(
                        f"layout: {kind} layer {number} has heads {indices}, not a sorted subset of 0..{total - 1}"
                    )

    @classmethod
    def full(cls, encoder_layers: int, decoder_layers: int, heads: int) -> Layout:
        """All heads of a Transformer with that many layers of every kind and ``heads`` heads in each."""
        layers = {"enc-self": encoder_layers, "dec-self": decoder_layers, "enc-dec": decoder_layers}
        return cls(
            kept={kind: (tuple(range(heads)),) * n for kind, n in layers.items()},
            heads={kind: (heads,) * n for kind, n in layers.items()},
        )

    def __iter__(self) -> Iterator[Head]:
        """The kept heads in table order."""
        for kind in KINDS:
            for layer, indices in enumerate(self.kept.get(kind, ())):
                for index in indices:
                    yield Head(kind, layer, index)

    def within(self, scope: Iterable[str]) -> list[Head]:
        """The kept heads of the kinds in ``scope``, in table order."""
        kinds = set(scope)
        return [head for head in self if head.kind in kinds]

    def count(self, scope: Iterable[str] = KINDS) -> int:
        """How many heads are kept within ``scope``."""
        return len(self.within(scope))

    def total(self, scope: Iterable[str] = KINDS) -> int:
        """How many heads there were within ``scope`` before any pruning."""
        return sum(sum(self.heads.get(kind, ())) for kind in scope)

    def keep(self, heads: Iterable[Head], scope: Iterable[str]) -> Layout:
        """The layout that keeps only ``heads`` within ``scope`` and everything outside it."""
        chosen, kinds = set(heads), set(scope)
        missing = chosen - set(self.within(kinds))
        if missing:
            raise ValueError(f"layout: {min(missing)} is not a head of this model within {', '.join(sorted(kinds))}")
        kept = {
            kind: tuple(
                tuple(i for i in indices if kind not in kinds or Head(kind, layer, i) in chosen)
                for layer, indices in enumerate(layers)
            )
            for kind, layers in self.kept.items()
        }
        return Layout(kept, self.heads)

    def __str__(self) -> str:
        """The form used in rows: ``enc-self:0=1,5;1= dec-self:0=0,1``; a layer without heads is ``1=``."""
        parts = []
        for kind in KINDS:
            if kind in self.kept:
                layers = ";".join(f"{n}={','.join(map(str, ix))}" for n, ix in enumerate(self.kept[kind]))
                parts.append(f"{kind}:{layers}")
        return " ".join(parts)

    @classmethod
    def parse(cls, text: str, heads: int) -> Layout:
        """Read the form of ``str(layout)`` for a model that had ``heads`` heads in every layer.

        Raises ValueError for everything that ``str`` does not write.
        """
        kept: dict[str, tuple[tuple[int, ...], ...]] = {}
        for part in text.split():
            kind, _, body = part.partition(":")
            check_scope([kind])
            layers = [field.partition("=")[2] for field in body.split(";")]
            kept[kind] = tuple(tuple(int(i) for i in layer.split(",") if i) for layer in layers)
        layout = cls(kept, {kind: (heads,) * len(layers) for kind, layers in kept.items()})
        if str(layout) != text:
            raise ValueError(f"layout '{text}': expected the form {layout}")
        return layout

    def to_json(self) -> dict[str, Any]:
        """A JSON value for ``heads.json``."""
        return {
            "kept": {k: [list(ix) for ix in v] for k, v in self.kept.items()},
            "heads": {k: list(v) for k, v in self.heads.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Layout:
        """Read what :meth:`to_json` wrote; raise ValueError where it is not a layout."""
        try:
            return cls(
                {k: tuple(tuple(int(i) for i in ix) for ix in v) for k, v in value["kept"].items()},
                {k: tuple(int(n) for n in v) for k, v in value["heads"].items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a head layout: {error!r}") from error
