"""Maps of heads, layers × heads: which ones models kept, and how orderings rank them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from numpy.typing import NDArray

from headlab.attention.heads import KINDS
from headlab.report.orders import by_head
from headlab.report.summary import Model

_COLOURS = dict(zip(KINDS, ("#0072B2", "#D55E00", "#009E73"), strict=True))
_NONE = "#E6E6E6"
_ABREAST = 5  # panels
_CELL = 0.17  # inches, of a head


@dataclass(frozen=True)
class _Panel:
    """One map: by kind a number from 0 to 1 for every head, [layers, heads]."""

    title: str
    shares: Mapping[str, NDArray[np.float64]]


def heads_figure(models: Sequence[Model], folder: Path) -> Figure | None:
    """The heads that pruned models kept: a panel per model, its shade the share of seeds that kept the head.

    Models of one scope stand together, and the kinds outside it are not shown. None where there are no such models.
    """
    layouts = {place: list(model.layouts(folder).values()) for place, model in enumerate(models)}
    width = 1 + max((head.index for found in layouts.values() for layout in found for head in layout), default=0)
    several = len({model.experiment for model in models}) > 1
    blocks: dict[tuple[str, ...], list[_Panel]] = {}
    seeds = 0
    for place, model in enumerate(models):
        if model.role != "pruned" or model.untuned or model.whole or not layouts[place]:
            continue
        scope, seeds = model.scope or KINDS, max(seeds, model.seeds)
        shares = {}
        for kind in scope:
            depth = max(len(layout.kept.get(kind, ())) for layout in layouts[place])
            shares[kind] = np.zeros((depth, width))
            for layout in layouts[place]:
                for head in layout.within([kind]):
                    shares[kind][head.layer, head.index] += 1 / len(layouts[place])
        kept = sorted({int(n) for n in model.rows["heads_kept"].dropna()})
        count = " to ".join(map(str, dict.fromkeys((kept[0], kept[-1])))) if kept else "?"
        title = (f"{model.experiment}\n" if several else "") + f"{model.name}: {count}"
        blocks.setdefault(scope, []).append(_Panel(title, shares))
    shade = ", the darker the more seeds agree" if seeds > 1 else ""
    return _figure(list(blocks.values()), f"kept{shade}", "pruned") if blocks else None


def ranks_figure(frame: pd.DataFrame) -> Figure:
    """How the orderings of head_scores.csv rank heads: a panel per ordering, mean ranks over seeds."""
    blocks = []
    several = frame["experiment"].nunique() > 1
    for (experiment, _), rows in frame.groupby(["experiment", "scope"], sort=False):
        ranks = pd.concat([by_head(one).rank(pct=True) for _, one in rows.groupby("seed")])
        mean = ranks.groupby(level=["kind", "layer", "head"], sort=False).mean()
        panels = []
        for name in mean:
            found = mean[name].dropna()
            shares = {}
            for kind in KINDS:
                if kind in found.index.get_level_values("kind"):
                    table = found.loc[kind].unstack("head")
                    shares[kind] = np.nan_to_num(table.sort_index(axis=0).sort_index(axis=1).to_numpy())
            panels.append(_Panel((f"{experiment}\n" if several else "") + str(name), shares))
        blocks.append(panels)
    return _figure(blocks, "worth keeping: the darker, the better the rank (a mean over seeds)", "ranked last")


def _figure(blocks: list[list[_Panel]], dark: str, pale: str) -> Figure:
    """Blocks of panels below each other; the panels of one block have the same kinds."""
    sizes = [_size(panels) for panels in blocks]
    figure = Figure(
        figsize=(max(wide for wide, _ in sizes), 0.4 + sum(high for _, high in sizes)),
        layout=ConstrainedLayoutEngine(hspace=0.05),
    )
    parts = figure.subfigures(len(blocks), 1, squeeze=False, height_ratios=[high for _, high in sizes])
    for part, panels in zip(parts.flat, blocks, strict=True):
        _block(part, panels)
    kinds = [kind for kind in KINDS if any(kind in panels[0].shares for panels in blocks)]
    legend = [Patch(color=_COLOURS[kind], label=f"{kind} {dark}") for kind in kinds]
    figure.legend(handles=[*legend, Patch(color=_NONE, label=pale)], loc="outside lower center", ncols=2)
    return figure


def _rows(panels: Sequence[_Panel]) -> tuple[dict[str, int], int]:
    """The first row of every kind, and how many rows there are: kinds stand below each other with a gap."""
    first, row = {}, 0
    for kind in panels[0].shares:
        first[kind] = row
        row += 1 + max(len(panel.shares[kind]) for panel in panels)
    return first, row - 1


def _size(panels: Sequence[_Panel]) -> tuple[float, float]:
    """Width and height of a block in inches."""
    columns = min(_ABREAST, len(panels))
    lines = -(-len(panels) // columns)
    heads = max(shares.shape[1] for shares in panels[0].shares.values())
    return 0.8 + columns * (heads * _CELL + 0.25), 0.3 + lines * (_rows(panels)[1] * _CELL + 0.35)


def _block(part: SubFigure, panels: Sequence[_Panel]) -> None:
    first, height = _rows(panels)
    columns = min(_ABREAST, len(panels))
    axes = part.subplots(-(-len(panels) // columns), columns, squeeze=False, sharex=True, sharey=True)
    for ax in axes.flat:
        ax.set_axis_off()
    for number, (ax, panel) in enumerate(zip(axes.flat, panels, strict=False)):
        ax.set_axis_on()
        picture = np.ones((height, max(shares.shape[1] for shares in panel.shares.values()), 3))
        for kind, shares in panel.shares.items():
            picture[first[kind] : first[kind] + len(shares), : shares.shape[1]] = _shaded(shares, _COLOURS[kind])
        _map(ax, picture)
        ax.set_title(panel.title, pad=3)
        if number % columns == 0:
            depth = {kind: len(shares) for kind, shares in panel.shares.items()}
            ax.set_yticks(
                [first[kind] + layer for kind in depth for layer in range(depth[kind])],
                [str(layer) for kind in depth for layer in range(depth[kind])],
            )
            for kind in depth:
                middle = first[kind] + (depth[kind] - 1) / 2
                ax.text(-0.26, middle, f"{kind} layer", transform=ax.get_yaxis_transform(), rotation=90,
                        ha="center", va="center", color=_COLOURS[kind], fontweight="bold", fontsize=8)  # fmt: skip
        if number + columns >= len(panels):
            ax.tick_params(labelbottom=True)
            ax.set_xlabel("head", fontsize=8, labelpad=1)


def _map(ax: Axes, picture: NDArray[np.float64]) -> None:
    height, width, _ = picture.shape
    ax.imshow(picture, interpolation="nearest", aspect="equal")
    ax.hlines(np.arange(height + 1) - 0.5, -0.5, width - 0.5, color="white", linewidth=1.2)
    ax.vlines(np.arange(width + 1) - 0.5, -0.5, height - 0.5, color="white", linewidth=1.2)
    ax.set_xlim(-0.5, width - 0.5)
    ax.set_ylim(height - 0.5, -0.5)
    ax.set_xticks(range(0, width, max(1, width // 8)))
    ax.tick_params(length=0, pad=1, labelsize=7)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _shaded(shares: NDArray[np.float64], colour: str) -> NDArray[np.float64]:
    """Colours [layers, heads, 3] between 'none' (0) and the kind's own (1)."""
    none, own = np.array(to_rgb(_NONE)), np.array(to_rgb(colour))
    return np.asarray(none + shares[..., None] * (own - none))
