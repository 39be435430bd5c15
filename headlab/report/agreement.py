"""The figure of head_scores.csv: how far the orderings of the heads of one base agree."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from headlab.report.orders import correlations

_CELL = 0.36  # inches


def agreement_figure(frame: pd.DataFrame) -> Figure | None:
    """Spearman's rank correlation of every two orderings, a panel per scope, means over seeds; None without any."""
    panels = list(correlations(frame))
    if not panels:
        return None
    sizes = [len(matrix) for _, matrix in panels]
    figure = Figure(figsize=(max(sizes) * _CELL + 3, sum(sizes) * _CELL + 1.6 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=sizes)[:, 0]
    for ax, (title, matrix) in zip(axes, panels, strict=True):
        image = ax.imshow(matrix, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
        names, places = list(matrix.columns), range(len(matrix))
        ax.set_xticks(places, names, rotation=45, ha="right", fontsize=7)
        ax.set_yticks(places, names, fontsize=7)
        ax.tick_params(length=0)
        for line in places:
            for column in places:
                value = float(matrix.iloc[line, column])  # type: ignore[arg-type]
                colour = "white" if abs(value) > 0.6 else "black"
                text = "" if pd.isna(value) else f"{value:.2f}"
                ax.text(column, line, text, ha="center", va="center", fontsize=6, color=colour)
        ax.set_title(title, loc="left", fontweight="bold")
        figure.colorbar(image, ax=ax, shrink=0.7, label="Spearman's ρ")
    return figure
