"""bleu_vs_heads, untuned, heads, cosines, orderings and ranks: the figures of a results folder, as PNG and PDF."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from headlab.report.agreement import agreement_figure
from headlab.report.cosines import cosine_figure
from headlab.report.heads import read_heads
from headlab.report.maps import heads_figure, ranks_figure
from headlab.report.orders import read_scores
from headlab.report.summary import Model, read_models

# Okabe and Ito's colours, which colour-blind readers tell apart; series also differ in their markers.
_BLUE, _ORANGE, _GREEN, _PINK, _SKY, _AMBER = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
_SERIES = [(_BLUE, "o"), (_GREEN, "D"), (_PINK, "^"), (_SKY, "v"), (_AMBER, "P"), ("#000000", "X"), ("#7F7F7F", "h")]
_RANDOM = (_ORANGE, "s")
#: More series than this stand beside each other at every count of heads, so many doublings of the count apart.
_ABREAST, _BESIDE = 3, 0.045

_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
    "savefig.bbox": "tight",
}


def write_figures(folder: Path) -> list[Path]:
    """Write bleu_vs_heads and, where there is something to show, heads, untuned, cosines, orderings and ranks.

    heads needs pruned models with layouts, untuned some that were not fine-tuned, cosines heads that voted, and
    orderings and ranks two methods that scored the same heads.

    The same CSV files give the same bytes. Raises UserError when rows.csv is missing, empty or damaged.
    """
    models = read_models(folder)
    with matplotlib.rc_context(_STYLE):
        tuned = [model for model in models if not model.untuned]
        written = _save(_bleu_figure(tuned), folder / "bleu_vs_heads")
        if len(tuned) < len(models):
            shown = [model for model in models if model.untuned or model.role == "base"]
            written += _save(_bleu_figure(shown), folder / "untuned")
        heads = heads_figure(models, folder)
        if heads is not None:
            written += _save(heads, folder / "heads")
        votes = read_heads(folder)
        if votes is not None:
            written += _save(cosine_figure(votes), folder / "cosines")
        scores = read_scores(folder)
        agreement = None if scores is None else agreement_figure(scores)
        if scores is not None and agreement is not None:
            written += _save(agreement, folder / "orderings") + _save(ranks_figure(scores), folder / "ranks")
    return written


def _save(figure: Figure, stem: Path) -> list[Path]:
    """Write the figure without the time and version that would make every file differ, each file put in place whole."""
    png, pdf = stem.with_suffix(".png"), stem.with_suffix(".pdf")
    with _whole(png) as part:
        FigureCanvasAgg(figure).print_figure(part, format="png", metadata={"Software": None})
    figure.set_layout_engine("none")  # what was arranged stays so: arranging takes most of the time
    with _whole(pdf) as part:
        FigureCanvasPdf(figure).print_figure(part, format="pdf", metadata={"CreationDate": None, "Producer": None})
    return [png, pdf]


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _bleu_figure(models: list[Model]) -> Figure:
    """BLEU against heads kept, one panel per experiment and scope.

    A point is a mean over seeds, and its broad bar ± their standard deviation. Its thin bar is the 95 % interval of
    the difference from the control, drawn around the control's BLEU: where a bar reaches the control, the difference
    may be zero.
    """
    panels = _by_scope([model for model in models if model.mean("bleu") is not None]) or [[]]
    figure = Figure(figsize=(6.0, 3.9 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for ax, shown in zip(axes, panels, strict=True):
        _bleu_panel(ax, shown)
    return figure


def _by_scope(models: list[Model]) -> list[list[Model]]:
    """The models of every panel: those of one experiment and scope, and the base, which may be of another."""
    found: dict[tuple[str, tuple[str, ...]], list[Model]] = {}
    for model in models:
        if model.role in ("pruned", "scratch"):
            found.setdefault((model.experiment, model.scope), []).append(model)
    for model in models:
        if not any(experiment == model.experiment for experiment, _ in found):
            found[model.experiment, model.scope] = []
    for (experiment, scope), own in found.items():
        bases = [model for model in models if model.role == "base" and model.experiment == experiment]
        own += sorted(bases, key=lambda model: model.scope != scope)[:1]
    return list(found.values())


def _bleu_panel(ax: Axes, models: list[Model]) -> None:
    pruned = [m for m in models if m.role in ("pruned", "scratch") and m.mean("heads_kept") is not None]
    untuned = any(model.untuned for model in pruned)
    base = next((model for model in models if model.role == "base"), None)
    if base is not None:
        ax.axhline(_of(base, "bleu"), color="#7F7F7F", linestyle=":", linewidth=1.2, label="base", zorder=1)
    found: dict[str, list[Model]] = {}  # in table order, so colours and legend follow it
    for model in pruned:
        found.setdefault(model.series, []).append(model)
    for series in found.values():
        series.sort(key=lambda model: _of(model, "heads_kept"))
    _reference_lines(ax, [m for m in max(found.values(), key=len, default=[]) if m.against_control])

    styles = iter(_SERIES * (1 + len(found) // len(_SERIES)))
    beside = _BESIDE if len(found) > _ABREAST else 0.0
    for place, (name, series) in enumerate(found.items()):
        colour, marker = _RANDOM if series[0].method == "random" else next(styles)
        _series(ax, series, 2 ** (beside * (place - (len(found) - 1) / 2)), colour, marker, name)
    several = "; broad: ± standard deviation over seeds" if any(m.sd("bleu") is not None for m in pruned) else ""
    if any(model.low is not None for model in pruned):
        other = "base" if untuned else "control"
        ax.set_title(f"bars: 95 % interval of the difference from the {other}{several}", loc="right", fontsize=8)
    _heads_axis(ax, pruned)
    above = "\n" if several else ""  # both titles do not fit into one line
    ax.set_title((models[0].experiment if models else "") + above, loc="left", fontweight="bold")
    ax.set_ylabel("BLEU")
    ax.grid(axis="y", color="#E6E6E6", linewidth=0.6)
    ax.set_axisbelow(True)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3)


def _reference_lines(ax: Axes, series: list[Model]) -> None:
    """The controls that the models of ``series`` are compared with, and the paper's differences from them."""
    if not series:
        return
    heads = [_of(model, "heads_kept") for model in series]
    control = [_of(model, "bleu") - (model.delta or 0) for model in series]
    label = f"control of {series[0].name} (equal updates)"
    style: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1.2, "label": label, "zorder": 2}
    if len(set(heads)) > 1:
        ax.plot(heads, control, **style)
    else:  # which would be no line
        ax.axhline(control[0], **style)
    paper = [
        (x, y + m.paper_delta) for x, y, m in zip(heads, control, series, strict=True) if m.paper_delta is not None
    ]
    if paper:
        grey: dict[str, Any] = {"color": "#7F7F7F", "linewidth": 1, "marker": "x", "markersize": 4}
        ax.plot(*zip(*paper, strict=True), **grey, label="the paper's Δ, from that control", zorder=2)


def _series(ax: Axes, series: list[Model], beside: float, colour: str, marker: str, label: str) -> None:
    x = [_of(model, "heads_kept") * beside for model in series]
    ax.plot(
        x,
        [_of(m, "bleu") for m in series],
        color=colour,
        marker=marker,
        markersize=5,
        linewidth=1.4,
        label=label,
        zorder=4,
    )
    for heads, model in zip(x, series, strict=True):
        if model.delta is not None and model.low is not None and model.high is not None:
            control = _of(model, "bleu") - model.delta
            ends = [control + model.low, control + model.high]
            ax.plot([heads, heads], ends, color=colour, linewidth=1, marker="_", markersize=5, alpha=0.6, zorder=3)
        if (sd := model.sd("bleu")) is not None:
            mean, values = _of(model, "bleu"), model.rows["bleu"]
            ax.vlines(heads, mean - sd, mean + sd, color=colour, linewidth=5, alpha=0.25, zorder=2.5)
            ax.scatter([heads] * len(values), values, s=7, color=colour, alpha=0.4, linewidths=0, zorder=3)


def _heads_axis(ax: Axes, pruned: list[Model]) -> None:
    """A logarithmic axis with the targets as ticks; 0 heads has a place of its own at the left."""
    totals = {model.mean("heads_total") for model in pruned} - {None}
    asked = {float(m.target) for m in pruned if m.target is not None}
    targets = sorted(asked | {_of(m, "heads_kept") for m in pruned if m.whole or not asked})
    if any(_of(model, "heads_kept") == 0 for model in pruned):
        targets = sorted({0.0, *targets})
        ax.set_xscale("symlog", base=2, linthresh=1)
    else:
        ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(targets))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    of = f" of {max(t for t in totals if t is not None):.0f}" if len(totals) == 1 else ""
    scopes = {", ".join(model.scope) for model in pruned if model.scope}
    where = f" ({scopes.pop()})" if len(scopes) == 1 else ""
    ax.set_xlabel(f"heads kept{of}{where}")


def _of(model: Model, column: str) -> float:
    value = model.mean(column)
    assert value is not None, f"{model.name} has no {column}"
    return value
