"""table.md and table.tex: one line per model of rows.csv."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tabulate import tabulate

from headlab.attention.heads import Layout
from headlab.report.heads import read_heads, votes_text
from headlab.report.kinds import dying_text, kept_table
from headlab.report.orders import passes_text, read_scores
from headlab.report.resamples import read_resamples
from headlab.report.rivals import random_text
from headlab.report.summary import MARGIN, Model, read_models, signed
from headlab.runs import atomic_write

#: Signs that LaTeX's default fonts lack.
_LATEX = str.maketrans({"Δ": r"$\Delta$", "−": "$-$", "±": r"$\pm$", "×": r"$\times$"})


def write_tables(folder: Path) -> list[Path]:
    """Write table.md and table.tex (a ``tabular`` for booktabs) from the CSV files of ``folder``.

    Raises UserError when rows.csv is missing, empty or damaged.
    """
    models = read_models(folder)
    experiments = list(dict.fromkeys(model.experiment for model in models))
    groups = [[model for model in models if model.experiment == name] for name in experiments]
    written = {
        folder / "table.md": "\n".join(_markdown(group, folder) for group in groups),
        folder / "table.tex": "\n".join(_latex(group) for group in groups),
    }
    for path, text in written.items():
        atomic_write(path, text)
    return list(written)


def _markdown(models: list[Model], folder: Path) -> str:
    header, body, align = _cells(models)
    table = tabulate(_escaped(body), header, tablefmt="pipe", colalign=align, disable_numparse=True)
    title, *notes = _notes(models)
    scores = read_scores(folder)
    looked = "" if scores is None else passes_text(scores[scores["experiment"] == models[0].experiment])
    notes += [looked] if looked else []
    shown = [f"- {text}" for text in (*random_text(models, read_resamples(folder)), *dying_text(models))]
    kept = kept_table(models, folder)
    layouts = [
        f"- {model.name}, {_heads(model)}"
        + (f", seed {seed}" if model.seeds > 1 else "")
        + f": `{_within(layout, model)}`"
        for model in models
        if model.role in ("pruned", "scratch") and not model.untuned  # which has the heads of the tuned one
        for seed, layout in model.layouts(folder).items()
    ]
    folded = (
        ["<details><summary>Which heads these models have</summary>", "", *layouts, "", "</details>", ""]
        if layouts
        else []
    )
    votes = read_heads(folder)
    told = [] if votes is None else list(votes_text(votes, models[0].experiment))
    if told:
        head = "Groups and votes: heads of a group as head:votes, bold where they stay"
        folded += [f"<details><summary>{head}</summary>", "", *told, "", "</details>", ""]
    found = ["What the rows show:", "", *shown, ""] if shown else []
    found += [kept, ""] if kept else []
    return "\n".join([f"**{title}**", "", table, "", *found, *(f"{note}  " for note in notes), "", *folded])


def _latex(models: list[Model]) -> str:
    header, body, align = _cells(models)
    table = tabulate(body, header, tablefmt="latex_booktabs", colalign=align, disable_numparse=True)
    comments = [r"\usepackage{booktabs}", *_notes(models)]
    return "\n".join([*(f"% {line}" for line in comments), table.translate(_LATEX), ""])


def _notes(models: list[Model]) -> list[str]:
    """The title, and what a reader must know to read the numbers."""
    scopes = sorted({" ".join(model.scope) for model in models if model.role == "pruned"})
    notes = [f"{models[0].experiment}: BLEU against heads kept" + (f" (scope {'; '.join(scopes)})" if scopes else "")]
    for name in ("bleu", "chrf"):
        signatures = sorted({s for model in models for s in model.rows[f"{name}_signature"] if s})
        label = {"bleu": "BLEU", "chrf": "chrF"}[name]
        if len(signatures) == 1:
            notes.append(f"{label}: {signatures[0]}.")
        elif signatures:
            notes.append(f"{label} was computed in several ways, which do not compare: {'; '.join(signatures)}.")
    if any(model.delta is not None for model in models):
        notes.append(
            "Δ: BLEU minus that of the control of equal updates (the base trained on with all its heads: same schedule,"
            " batches and checkpoint rule), with its 95 % interval (paired bootstrap over sentences)."
        )
        notes.append(
            f"Within {MARGIN}: the interval's lower end is above −{MARGIN}; worse: its upper end is below −{MARGIN};"
            " else undecided. p: paired bootstrap test; a large p does not show that two models are equal."
        )
    if any(model.seeds > 1 for model in models):
        adjusted = [model.untuned for model in models if model.seeds > 1 and model.p_value is not None]
        apart = f" that were fine-tuned, and for the {sum(adjusted)} untuned ones" if any(adjusted) else ""
        notes.append(
            "n seeds: means over them ± their standard deviation, which is what other seeds would change. The interval"
            " is that of the mean, sentences resampled jointly for all seeds: what another test set would change. p is"
            f" Holm-adjusted for the {adjusted.count(False)} models with several seeds{apart}."
        )
        notes.append("Not resolved: a difference of less than two standard deviations of the seeds' differences.")
    if any(model.ablated_delta is not None for model in models):
        notes.append(
            "Δ from the whole method: BLEU minus the mean over seeds of what this is an ablation of (ablated.csv); not"
            " resolved where it is less than two standard deviations of those seeds."
        )
    if any(model.paper_delta is not None for model in models):
        notes.append("Paper's Δ: the paper's own BLEU with so many heads minus its own BLEU with all.")
    if any(model.untuned for model in models):
        notes.append("Untuned: heads removed and nothing trained after that; its Δ is against the base.")
    if any(model.role == "scratch" for model in models):
        notes.append("Scratch: a pruned layout trained from random initialisation with the same total updates.")
    if any(model.role == "lite" for model in models):
        notes.append(
            "lite1, lite2: unpruned models of fewer layers and of less width, with about as many parameters, trained"
            " from random initialisation with the same total updates."
        )
    if any(model.variant.startswith("ght") for model in models):
        notes.append(
            "ght-cC: trained with the group constraint, C groups a layer, all heads; compared with the base, which had"
            " as many updates. ght-cC-uN: that one trained on for N updates without the constraint, as what was cut"
            " from it; compared with the control."
        )
    if any(model.mean("flops") for model in models):
        notes.append(
            "Parameters without embeddings. FLOPs: multiply-accumulates of one forward, 30 tokens on either side."
        )
    return notes


def _cells(models: list[Model]) -> tuple[list[str], list[list[str]], list[str]]:
    """Header, lines and alignment; columns without any value are left out."""
    metrics = sorted({name for model in models for name in model.rows["metric"] if name})
    columns: dict[str, tuple[str, Callable[[Model], str]]] = {
        "scope": ("left", lambda model: _scope(model, models)),
        "model": ("left", lambda model: model.name),
        "heads": ("right", _heads),
        "n": ("right", lambda model: str(model.seeds) if any(m.seeds > 1 for m in models) else ""),
        "BLEU": ("right", lambda model: _with_sd(model, "bleu")),
        "chrF": ("right", lambda model: _with_sd(model, "chrf")),
        **{name: ("right", partial(_metric, name=name)) for name in metrics},
        "Δ BLEU [95 %]": ("right", _delta),
        "p": ("right", lambda model: _p(model.p_value)),
        f"within {MARGIN}?": ("left", lambda model: model.verdict),
        "over seeds": ("left", lambda model: model.resolved),
        "Δ from the whole method": ("left", _ablated),
        "Δ against": ("left", lambda model: "; ".join(dict.fromkeys(r for r in model.rows["reference"] if r))),
        "paper's Δ": ("right", lambda model: "" if model.paper_delta is None else signed(model.paper_delta)),
        "params (M)": ("right", lambda model: _scaled(model, "params_no_embeddings", 1e6, 2)),
        "FLOPs (M)": ("right", lambda model: _scaled(model, "flops", 1e6, 0)),
        "sentences/s": ("right", lambda model: _scaled(model, "sentences_per_s", 1, 0)),
        "speed-up": ("right", lambda model: _scaled(model, "speedup", 1, 2, "×")),
        "updates": ("right", _updates),
        "training (min)": ("right", lambda model: _scaled(model, "train_seconds", 60, 1)),
    }
    used = {head: (side, [cell(model) for model in models]) for head, (side, cell) in columns.items()}
    used = {head: column for head, column in used.items() if any(column[1])}
    lines = [list(line) for line in zip(*(cells for _, cells in used.values()), strict=True)]
    return list(used), lines, [side for side, _ in used.values()]


def _scope(model: Model, models: list[Model]) -> str:
    """The kinds that may lose heads, where that differs between models; the base and its controls have it too."""
    return " ".join(model.scope) if len({m.scope for m in models if m.role == "pruned"}) > 1 else ""


def _heads(model: Model) -> str:
    """Heads kept of those within the scope; per kind too where the scope has several; a range where seeds differ."""
    counts = sorted(set(model.rows["heads_kept"].dropna()))
    if not counts:
        return ""
    text = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    total = model.mean("heads_total")
    if total is not None:
        text += f"/{total:.0f}"
    if len(model.scope) > 1 and len(counts) == 1 and model.seeds == 1:
        row = model.rows.iloc[0]
        per_kind = [row["kept_" + kind.replace("-", "_")] for kind in model.scope]
        text += f" ({'+'.join(map(str, per_kind))})"
    return text


def _within(layout: Layout, model: Model) -> str:
    """The layout without the kinds outside the scope, which have all their heads."""
    kinds = [kind for kind in layout.kept if kind in model.scope or not model.scope]
    return str(Layout({kind: layout.kept[kind] for kind in kinds}, {kind: layout.heads[kind] for kind in kinds}))


def _with_sd(model: Model, column: str) -> str:
    mean, sd = model.mean(column), model.sd(column)
    if mean is None:
        return ""
    return f"{mean:.2f}" if sd is None else f"{mean:.2f} ± {sd:.2f}"


def _metric(model: Model, name: str) -> str:
    return _scaled(model, "metric_value", 1, 2) if (model.rows["metric"] == name).all() else ""


def _delta(model: Model) -> str:
    if model.delta is None:
        return ""
    text = signed(model.delta)
    if model.delta_sd is not None:
        text += f" ± {model.delta_sd:.2f}"
    if model.low is None or model.high is None:
        return text
    return f"{text} [{signed(model.low)}, {signed(model.high)}]"


def _ablated(model: Model) -> str:
    if model.ablated_delta is None:
        return ""
    return f"{signed(model.ablated_delta)}, {model.ablation}".rstrip(", ")


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _scaled(model: Model, column: str, unit: float, digits: int, suffix: str = "") -> str:
    mean = model.mean(column)
    return "" if mean is None else f"{mean / unit:.{digits}f}{suffix}"


def _updates(model: Model) -> str:
    """Updates of base + selection + fine-tuning."""
    parts = [model.mean(f"updates_{stage}") for stage in ("base", "selection", "finetune")]
    return "+".join(f"{part:.0f}" for part in parts if part) if any(parts) else ""


def _escaped(body: list[list[str]]) -> list[list[str]]:
    return [[cell.replace("|", "\\|") for cell in line] for line in body]
