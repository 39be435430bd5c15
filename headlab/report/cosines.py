"""The figure of heads.csv: how alike the heads of every layer are, with the group constraint and without."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headlab.attention.heads import KINDS
from headlab.report.heads import layers, polls

_CELL = 0.11  # inches


def cosine_figure(frame: pd.DataFrame) -> Figure:
    """Head-by-head cosines: a block per vote (first seed), in it a row per kind and a matrix per layer.

    The heads of a layer stand in the order of their groups, lines part the groups, dots mark the heads that stay.
    """
    shown = list(polls(frame[frame["seed"] == frame["seed"].min()]))
    kinds = [kind for kind in KINDS if (frame["kind"] == kind).any()]
    depth, size = int(frame["layer"].max()) + 1, int(frame["head"].max()) + 1
    width, height = depth * size * _CELL + 1.2, len(kinds) * (size * _CELL + 0.2) + 0.5
    figure = Figure(figsize=(width, height * len(shown) + 0.3), layout="constrained")
    image = None
    for block, (name, rows) in zip(figure.subfigures(len(shown), 1, squeeze=False).flat, shown, strict=True):
        block.suptitle(name, x=0.02, ha="left", fontsize=9, fontweight="bold")
        axes = block.subplots(len(kinds), depth, squeeze=False)
        for ax in axes.flat:
            ax.set_axis_off()
        for kind, layer, heads in layers(rows):
            ax = axes[kinds.index(kind), layer]
            image = _matrix(ax, heads)
            ax.set_title(f"{kind}.{layer}", fontsize=6, pad=2)
        block.colorbar(image, ax=axes, shrink=0.8, label="cosine")
    return figure


def _matrix(ax: Axes, heads: pd.DataFrame) -> object:
    order = np.argsort(heads["group"].to_numpy(dtype=int), kind="stable")
    alike = np.array([[float(value) for value in row.split()] for row in heads["cosines"]])[np.ix_(order, order)]
    groups, stays = heads["group"].to_numpy(dtype=int)[order], heads["stays"].to_numpy(dtype=int)[order]
    ax.set_axis_on()
    image = ax.imshow(alike, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
    for border in np.flatnonzero(np.diff(groups)) + 0.5:
        ax.axhline(border, color="black", linewidth=0.6)
        ax.axvline(border, color="black", linewidth=0.6)
    if not stays.all():
        ax.scatter(np.flatnonzero(stays), np.flatnonzero(stays), s=4, color="black")
    ax.set_xticks([])
    ax.set_yticks(range(len(order)), heads["head"].astype(str).to_numpy()[order], fontsize=4)
    ax.tick_params(length=0, pad=1)
    return image
