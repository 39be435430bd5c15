"""Where random heads are as good as those that a method chose: sentences made of the rows of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from headlab.report.resamples import Key, Sampled, key_of
from headlab.report.summary import Model, signed
from headlab.scoring.seeds import over_seeds

_AS_GOOD, _BETTER, _UNKNOWN = "as good", "better", "unknown"


def random_text(models: Sequence[Model], sampled: Mapping[Key, Sampled]) -> list[str]:
    """Sentences that name every scope and count at which random heads, fine-tuned, are as good as those of a method.

    That is where the 95 % interval of the method's BLEU minus that of random is not above 0: a mean over the seeds
    that both have, sentences resampled jointly for all of them. Only models that are compared with the same control,
    which had as many updates, are held against each other. Empty where random has no rival.
    """
    tuned = [model for model in models if model.role == "pruned" and not (model.untuned or model.whole)]
    found: dict[str, list[str]] = {_AS_GOOD: [], _BETTER: [], _UNKNOWN: []}
    for random in (model for model in tuned if model.method == "random"):
        here: dict[str, list[str]] = {group: [] for group in found}
        for model in tuned:
            if model.method != "random" and _place(model) == _place(random):
                group, text = _held_against(model, random, sampled)
                here[group].append(text)
        for group, texts in here.items():
            if texts:
                count = f"{random.mean('heads_kept'):.0f} of {random.mean('heads_total'):.0f}"
                found[group].append(f"at {count} ({', '.join(random.scope)}): {', '.join(texts)}")
    rule = "95 % interval of its BLEU minus that of random, a mean over seeds,"
    said = []
    if found[_AS_GOOD]:
        said.append(
            f"Random heads with fine-tuning are as good as a method, as far as can be told (the {rule} is not above 0):"
            f" {'; '.join(found[_AS_GOOD])}."
        )
    elif found[_BETTER] and not found[_UNKNOWN]:
        said.append(f"Random heads with fine-tuning are nowhere as good as a method: the {rule} is always above 0.")
    if found[_BETTER]:
        said.append(f"Better than random heads with fine-tuning: {'; '.join(found[_BETTER])}.")
    if found[_UNKNOWN]:
        said.append(f"Not held against random, since resamples.csv lacks their rows: {'; '.join(found[_UNKNOWN])}.")
    return said


def _place(model: Model) -> tuple[object, ...]:
    """What two models have to share: where heads may go, how many stay, and the updates."""
    return model.experiment, model.scope, model.target, frozenset(model.rows["reference"])


def _held_against(model: Model, random: Model, sampled: Mapping[Key, Sampled]) -> tuple[str, str]:
    """Who is better, and the difference in words."""
    others = {int(row["seed"]): row for row in random.rows.to_dict("records")}
    deltas, resampled = [], []
    for row in model.rows.to_dict("records"):
        if (other := others.get(int(row["seed"]))) is None:
            continue
        drawn = [sampled.get(key_of(each)) for each in (row, other)]
        own, rival = (
            one if one is not None and one.bleu == each["bleu"] else None  # not of an earlier measurement
            for one, each in zip(drawn, (row, other), strict=True)
        )
        if own is None or rival is None or own.draws != rival.draws:
            return _UNKNOWN, model.name
        deltas.append(row["bleu"] - other["bleu"])
        resampled.append(own.resampled - rival.resampled)
    if not deltas:
        return _UNKNOWN, model.name
    found, sd = over_seeds(deltas, resampled), float(pd.Series(deltas).std(ddof=1))
    spread = "" if pd.isna(sd) else f" ± {sd:.2f}"
    text = f"{model.name} {signed(found.delta)}{spread} [{signed(found.low)}, {signed(found.high)}]"
    if found.low <= 0:
        return _AS_GOOD, text + (" (random is better)" if found.high < 0 else "")
    return _BETTER, text + (" (not resolved over seeds)" if found.delta < 2 * sd else "")
