"""bleu_vs_heads, untuned, heads, cosines and orderings: the figures of a results folder, as PNG and PDF."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator
from numpy.typing import NDArray

from headlab.attention.heads import KINDS
from headlab.report.agreement import agreement_figure
from headlab.report.cosines import cosine_figure
from headlab.report.heads import read_heads
from headlab.report.orders import read_scores
from headlab.report.summary import Model, read_models

# Okabe and Ito's colours, which colour-blind readers tell apart; series also differ in their markers.
_BLUE, _ORANGE, _GREEN, _PINK, _SKY, _AMBER = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
_SERIES = [(_BLUE, "o"), (_GREEN, "D"), (_PINK, "^"), (_SKY, "v"), (_AMBER, "P"), ("#000000", "X"), ("#7F7F7F", "h")]
_RANDOM = (_ORANGE, "s")
_KIND_COLOURS = dict(zip(KINDS, (_BLUE, _ORANGE, _GREEN), strict=True))
_PRUNED = "#E6E6E6"
_PANELS_ABREAST = 5

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
    """Write bleu_vs_heads and, where there is something to show, heads, untuned, cosines and orderings.

    heads needs pruned models with layouts, untuned some that were not fine-tuned, cosines heads that voted, and
    orderings two methods that scored the same heads.

    The same CSV files give the same bytes. Raises UserError when rows.csv is missing, empty or damaged.
    """
    models = read_models(folder)
    with matplotlib.rc_context(_STYLE):
        tuned = [model for model in models if not model.untuned]
        written = _save(_bleu_figure(tuned), folder / "bleu_vs_heads")
        if len(tuned) < len(models):
            shown = [model for model in models if model.untuned or model.role == "base"]
            written += _save(_bleu_figure(shown), folder / "untuned")
        heads = _heads_figure(models, folder)
        if heads is not None:
            written += _save(heads, folder / "heads")
        votes = read_heads(folder)
        if votes is not None:
            written += _save(cosine_figure(votes), folder / "cosines")
        scores = read_scores(folder)
        agreement = None if scores is None else agreement_figure(scores)
        if agreement is not None:
            written += _save(agreement, folder / "orderings")
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
    """BLEU against heads kept, one panel per experiment.

    A point is a mean over seeds, and its broad bar ± their standard deviation. Its thin bar is the 95 % interval of
    the difference from the control, drawn around the control's BLEU: where a bar reaches the control, the difference
    may be zero.
    """
    experiments = list(dict.fromkeys(model.experiment for model in models))
    figure = Figure(figsize=(6.0, 3.9 * len(experiments)), layout="constrained")
    axes = figure.subplots(len(experiments), 1, squeeze=False)[:, 0]
    for ax, experiment in zip(axes, experiments, strict=True):
        _bleu_panel(ax, [m for m in models if m.experiment == experiment and m.mean("bleu") is not None])
        ax.set_title(experiment, loc="left", fontweight="bold")
    return figure


def _bleu_panel(ax: Axes, models: list[Model]) -> None:
    pruned = [m for m in models if m.role in ("pruned", "scratch") and m.mean("heads_kept") is not None]
    untuned = any(model.untuned for model in pruned)
    base = next((model for model in models if model.role == "base"), None)
    if base is not None:
        ax.axhline(_of(base, "bleu"), color="#7F7F7F", linestyle=":", linewidth=1.2, label="base", zorder=1)
    found: dict[tuple[str, tuple[str, ...]], list[Model]] = {}  # in table order, so colours and legend follow it
    for model in pruned:
        found.setdefault((model.series, model.scope), []).append(model)
    for series in found.values():
        series.sort(key=lambda model: _of(model, "heads_kept"))
    _reference_lines(ax, [m for m in max(found.values(), key=len, default=[]) if m.against_control])

    styles = iter(_SERIES * (1 + len(found) // len(_SERIES)))
    several_scopes = len({scope for _, scope in found}) > 1
    for (name, scope), series in found.items():
        colour, marker = _RANDOM if name == "random" else next(styles)
        _series(ax, series, colour, marker, f"{name} ({', '.join(scope)})" if several_scopes else name)
    if any(model.low is not None for model in pruned):
        several = "; broad: ± standard deviation over seeds" if any(m.sd("bleu") is not None for m in pruned) else ""
        other = "base" if untuned else "control"
        ax.set_title(f"bars: 95 % interval of the difference from the {other}{several}", loc="right", fontsize=8)
    _heads_axis(ax, pruned)
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
    ax.plot(heads, control, color="black", linestyle="--", linewidth=1.2, label=label, zorder=2)
    paper = [
        (x, y + m.paper_delta) for x, y, m in zip(heads, control, series, strict=True) if m.paper_delta is not None
    ]
    if paper:
        grey: dict[str, Any] = {"color": "#7F7F7F", "linewidth": 1, "marker": "x", "markersize": 4}
        ax.plot(*zip(*paper, strict=True), **grey, label="the paper's Δ, from that control", zorder=2)


def _series(ax: Axes, series: list[Model], colour: str, marker: str, label: str) -> None:
    x = [_of(model, "heads_kept") for model in series]
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


def _heads_figure(models: list[Model], folder: Path) -> Figure | None:
    """A map of the kept heads: a panel per model, layers × heads, its shade the share of seeds that kept the head."""
    shown = [(m, list(m.layouts(folder).values())) for m in models if m.role == "pruned" and not m.untuned]
    shown = [(model, layouts) for model, layouts in shown if layouts and not model.whole]
    if not shown:
        return None
    width = 1 + max(
        (head.index for model in models for layout in model.layouts(folder).values() for head in layout), default=0
    )
    kinds = [kind for kind in KINDS if any(kind in (model.scope or KINDS) for model, _ in shown)]
    depth = {kind: max(len(layout.kept.get(kind, ())) for _, layouts in shown for layout in layouts) for kind in kinds}
    first_row = dict(zip(kinds, np.cumsum([0, *(depth[kind] + 1 for kind in kinds)])[:-1].tolist(), strict=True))
    height = sum(depth.values()) + len(kinds) - 1

    columns = min(_PANELS_ABREAST, len(shown))
    lines = -(-len(shown) // columns)
    cell = 0.17  # inches
    figure = Figure(
        figsize=(0.8 + columns * (width * cell + 0.25), 0.7 + lines * (height * cell + 0.35)),
        layout=ConstrainedLayoutEngine(hspace=0.05),
    )
    axes = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    several = len({model.experiment for model, _ in shown}) > 1
    for ax in axes.flat:
        ax.set_axis_off()
    for number, (ax, (model, layouts)) in enumerate(zip(axes.flat, shown, strict=False)):
        ax.set_axis_on()
        picture = np.ones((height, width, 3))
        for kind in kinds:
            shares = np.zeros((depth[kind], width))
            for layout in layouts:
                for head in layout.within([kind]):
                    shares[head.layer, head.index] += 1 / len(layouts)
            picture[first_row[kind] : first_row[kind] + depth[kind]] = _shaded(shares, _KIND_COLOURS[kind])
        _map_panel(ax, picture)
        kept = sorted({int(n) for n in model.rows["heads_kept"].dropna()})
        count = " to ".join(map(str, dict.fromkeys((kept[0], kept[-1])))) if kept else "?"
        ax.set_title((f"{model.experiment}\n" if several else "") + f"{model.name}: {count}", pad=3)
        if number % columns == 0:
            ax.set_yticks(
                [first_row[k] + i for k in kinds for i in range(depth[k])],
                [str(i) for k in kinds for i in range(depth[k])],
            )
            for kind in kinds:
                middle = first_row[kind] + (depth[kind] - 1) / 2
                ax.text(-0.26, middle, f"{kind} layer", transform=ax.get_yaxis_transform(), rotation=90,
                        ha="center", va="center", color=_KIND_COLOURS[kind], fontweight="bold", fontsize=8)  # fmt: skip
        if number + columns >= len(shown):
            ax.tick_params(labelbottom=True)
            ax.set_xlabel("head", fontsize=8, labelpad=1)
    shade = ", the darker the more seeds agree" if any(model.seeds > 1 for model, _ in shown) else ""
    legend = [Patch(color=_KIND_COLOURS[kind], label=f"{kind} kept{shade}") for kind in kinds]
    figure.legend(handles=[*legend, Patch(color=_PRUNED, label="pruned")], loc="outside lower center", ncols=4)
    return figure


def _map_panel(ax: Axes, picture: NDArray[np.float64]) -> None:
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
    """Colours [layers, heads, 3] between 'pruned' (share 0) and the kind's own (share 1)."""
    off, on = np.array(to_rgb(_PRUNED)), np.array(to_rgb(colour))
    return np.asarray(off + shares[..., None] * (on - off))
