"""What values the keys of :mod:`headlab.config` may have, checked as a whole so that all errors show at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path

from headlab.attention.heads import KINDS, check_scope
from headlab.config import Config
from headlab.errors import UserError

#: One error: the key it is about and the line to show.
Problem = tuple[str, str]

METHODS = ("l0", "gha", "dsp", "gradient", "confidence", "lrp", "magnitude", "leave-one-out", "random")

CHOICES = {
    "data.source": ("package", "files"),
    "model.norm": ("pre", "post"),
    "model.residual_init": ("glorot", "zero"),
    "optim.algorithm": ("adam", "muon"),
    "optim.schedule": ("inverse_sqrt", "constant", "cosine", "linear"),
    "optim.average_rule": ("last", "best"),
    "method.name": METHODS,
    "method.l0.init": ("open", "paper"),
    "method.l0.fold": ("one", "gate"),
    "method.gha.map": ("V", "A", "O"),
    "method.gha.weighting": ("per_token", "as_released"),
    "method.gha.start": ("random", "base"),
    "method.gha.constraint": ("first", "second", "both", "none"),
    "method.gha.vote": ("per_group", "per_layer", "random_members", "random_heads"),
    "method.gradient.per": ("example", "batch"),
    "method.lrp.rule": ("as_released", "paper"),
    "method.dsp.relaxation": ("soft", "straight_through", "identity"),
    "method.dsp.mode": ("joint", "pipelined"),
    "prune.schedule": ("inverse_sqrt", "constant"),
    "machine.device": ("auto", "cpu", "cuda"),
    "machine.precision": ("auto", "fp32", "bf16", "fp16"),
    "launcher.name": ("local", "slurm"),
}

#: Words for a range, the test, and the keys whose values (where not null) have to pass it.
RANGES: list[tuple[str, Callable[[float], bool], str]] = [
    (
        "at least 1",
        lambda v: v >= 1,
        "data.valid_size data.test_size data.pieces "
        "model.encoder_layers model.decoder_layers model.heads model.dim model.ffn "
        "optim.updates optim.batch_tokens optim.update_freq optim.validate_every optim.checkpoint_every "
        "optim.log_every optim.average optim.average_every "
        "prune.selection_updates prune.batch_tokens method.gha.groups method.gha.vote_groups method.gradient.rounds "
        "score.beam score.batch_sentences score.bootstrap score.speed_sentences score.speed_rounds "
        "machine.threads machine.devices machine.jobs launcher.parallel launcher.time launcher.cpus",
    ),
    (
        "at least 0",
        lambda v: v >= 0,
        "optim.warmup optim.weight_decay optim.clip_norm prune.finetune_updates prune.warmup launcher.gpus "
        "method.gha.alpha method.gha.beta method.gha.vote_epoch",
    ),
    (
        "more than 0",
        lambda v: v > 0,
        "optim.lr optim.adam_factor optim.eps prune.lr method.l0.penalty method.l0.lr method.l0.temperature "
        "method.gha.threshold method.dsp.lr method.lrp.eps",
    ),
    (
        "at least 0 and less than 1",
        lambda v: 0 <= v < 1,
        "model.dropout model.attention_dropout model.activation_dropout optim.beta1 optim.beta2 optim.label_smoothing",
    ),
    ("from 0 to 1", lambda v: 0 <= v <= 1, "optim.final_lr"),
    ("more than 0 and at most 1", lambda v: 0 < v <= 1, "method.dsp.cooldown"),
    ("from 1e-08 to 1000000", lambda v: 1e-8 <= v <= 1e6, "method.dsp.start method.dsp.end"),
    ("less than 0", lambda v: v < 0, "method.l0.low"),
    ("more than 1", lambda v: v > 1, "method.l0.high"),
    ("more than 0 and less than 0.5", lambda v: 0 < v < 0.5, "method.l0.eps"),
    ("a finite number", math.isfinite, "score.lenpen"),
    ("from 0 to 4294967295", lambda v: 0 <= v < 2**32, "seed data.seed method.random.seed"),
]

#: Models trained from random initialisation beside pruned ones.
ALONE = ("scratch", "lite1", "lite2")
CONTROLS = ("control", "ght", *ALONE)


def scope_of(cfg: Config) -> tuple[str, ...]:
    """The kinds of attention that may lose heads: ``prune.scope``, or what the method prunes by default."""
    if cfg.prune.scope is not None:
        return check_scope(cfg.prune.scope)
    return KINDS if cfg.method.name in ("gha", "dsp") else ("enc-self",)


def heads_in_scope(cfg: Config) -> int:
    """How many heads the unpruned model has within the scope."""
    return layers_in_scope(cfg) * cfg.model.heads


def layers_in_scope(cfg: Config) -> int:
    """How many attention layers there are within the scope."""
    return sum(cfg.model.encoder_layers if kind == "enc-self" else cfg.model.decoder_layers for kind in scope_of(cfg))


def groups_of(cfg: Config, target: int | None) -> tuple[int, int]:
    """How many groups per layer ``gha`` has while it trains, and in the vote for ``target`` heads of the scope.

    Two where nothing says how many: that keeps a quarter of eight heads, the paper's case.
    """
    gha = cfg.method.gha
    groups = gha.groups or (2 if target is None else max(math.ceil(target / layers_in_scope(cfg)), 1))
    return groups, gha.vote_groups or groups


def targets_of(cfg: Config) -> list[int]:
    """The head counts to prune to, falling; empty for Voita's protocol with a fixed penalty."""
    if cfg.prune.targets is not None:
        return sorted(set(cfg.prune.targets), reverse=True)
    return [cfg.prune.target] if cfg.prune.target is not None else []


def label_of(cfg: Config) -> str:
    """What tells the rows of this command from others: ``variant``, and the lambda of a fixed penalty."""
    penalty = cfg.method.l0.penalty
    fixed = f"lambda={penalty:g}" if penalty is not None else ""
    return "-".join(part for part in (cfg.variant, fixed) if part)


def check(cfg: Config, verb: str, bad: set[str]) -> list[Problem]:
    """All that is wrong with ``cfg`` for ``verb``, leaving out what depends on the keys in ``bad``."""
    found = [problem for problem in _single(cfg) if problem[0] not in bad]
    bad = bad | {key for key, _ in found}

    def known(*keys: str) -> bool:
        return not any(f"{b}.".startswith(f"{key}.") or f"{key}.".startswith(f"{b}.") for b in bad for key in keys)

    model = ("experiment", "base", "model")
    if known(*model) and cfg.model.dim % cfg.model.heads:
        found.append(("model.dim", f"model.dim={cfg.model.dim}: has to be a multiple of model.heads={cfg.model.heads}"))
    for group in ("optim", "prune"):
        settings = getattr(cfg, group)
        if known(group) and settings.schedule == "inverse_sqrt" and settings.warmup < 1:
            found.append((f"{group}.warmup", f"{group}.warmup=0: schedule inverse_sqrt needs at least 1"))
    if known("machine") and cfg.machine.precision == "fp16" and cfg.machine.device == "cpu":
        found.append(("machine.precision", "machine.precision=fp16: needs a GPU; on device=cpu take fp32 or bf16"))
    if known("machine") and cfg.machine.devices > 1 and (cfg.machine.jobs or 1) > 1:
        text = f"goes with one device a run only; set machine.jobs=1 or machine.devices=1 (now {cfg.machine.devices})"
        found.append(("machine.jobs", f"machine.jobs={cfg.machine.jobs}: {text}"))
    if known("method.dsp.start", "method.dsp.end") and cfg.method.dsp.end > cfg.method.dsp.start:
        text = f"has to be at most method.dsp.start={cfg.method.dsp.start}: the temperature falls"
        found.append(("method.dsp.end", f"method.dsp.end={cfg.method.dsp.end}: {text}"))
    if verb == "train" and cfg.seeds is not None:
        found.append(("seeds", "seeds: train makes one model; set seed, or prune several at once: headlab prune"))
    if verb == "train" and cfg.base is not None:
        found.append(("base", f"base={cfg.base}: train makes a base model; to prune this one: headlab prune --base"))
    if known("experiment", "method.name", "method.l0.penalty", "prune.target", "prune.targets"):
        found += _goal(cfg, verb)
    if known(*model, "prune.scope"):
        found += [p for p in _counts(cfg) if known(p[0])]
        found += [p for p in _groups(cfg, verb) if known(p[0])]
        if verb in ("prune", "validate") and cfg.model.share_all_embeddings and scope_of(cfg) == ("enc-self",):
            text = "with scope enc-self the decoder is frozen, its embedding too; set it to false or widen prune.scope"
            found.append(("model.share_all_embeddings", f"model.share_all_embeddings=true: {text}"))
    if known("experiment", "base", "data") and cfg.base is None and cfg.data.source == "files" and verb != "translate":
        found += _files(cfg, verb)
    return found


def _single(cfg: Config) -> Iterator[Problem]:
    """What can be seen by looking at one key alone."""
    for key, allowed in CHOICES.items():
        value = attrgetter(key)(cfg)
        if value not in allowed:
            yield key, f"{key}={value}: choose from {', '.join(allowed)}"
    for words, fits, keys in RANGES:
        for key in keys.split():
            value = attrgetter(key)(cfg)
            if value is not None and not (math.isfinite(value) and fits(value)):
                yield key, f"{key}={value}: has to be {words}"
    for key in ("data.name", "model.name", "optim.name", "results"):
        value = attrgetter(key)(cfg)
        if not value or "/" in value or value.startswith("."):
            yield key, f"{key}={value}: has to be a name of a folder, without / and not starting with a dot"
    if cfg.ablation_of is not None and not (rows := Path(cfg.results_dir) / cfg.ablation_of / "rows.csv").is_file():
        yield "ablation_of", f"ablation_of={cfg.ablation_of}: there is no {rows}; make that table first or leave it out"
    for key in ("data.source_lang", "data.target_lang"):
        value = attrgetter(key)(cfg)
        if not value or "/" in value or "." in value:
            yield key, f"{key}={value}: has to be the code of a language, e.g. en"
    if cfg.data.source_lang == cfg.data.target_lang:
        yield "data.target_lang", f"data.target_lang={cfg.data.target_lang}: has to differ from data.source_lang"
    if cfg.prune.scope is not None:
        try:
            check_scope(cfg.prune.scope)
        except ValueError as error:
            yield "prune.scope", f"prune.scope: {error}"
    for name in cfg.prune.controls:
        if name not in CONTROLS:
            yield "prune.controls", f"prune.controls: unknown '{name}': choose from {', '.join(CONTROLS)}"
    rivals = (*CHOICES["method.name"], *ALONE)
    for name in cfg.prune.rivals:
        if name not in rivals:
            yield "prune.rivals", f"prune.rivals: unknown method '{name}': choose from {', '.join(rivals)}"
    if cfg.seeds is not None:
        if not cfg.seeds or len(set(cfg.seeds)) < len(cfg.seeds):
            yield "seeds", f"seeds={cfg.seeds}: has to be different whole numbers, at least one, e.g. seeds=[1,2,3]"
        for seed in cfg.seeds:
            if not 0 <= seed < 2**32:
                yield "seeds", f"seeds: {seed} has to be from 0 to {2**32 - 1}"


def _goal(cfg: Config, verb: str) -> Iterator[Problem]:
    """Whether it is clear what to prune to, and in one way only."""
    given = [f"prune.{name}" for name in ("target", "targets") if getattr(cfg.prune, name) is not None]
    penalty = cfg.method.l0.penalty is not None
    if penalty and cfg.method.name != "l0":
        yield "method.l0.penalty", f"method.l0.penalty: method {cfg.method.name} has no penalty; take method=l0"
    elif penalty and given:
        yield (
            "method.l0.penalty",
            f"method.l0.penalty and {given[0]} are both given: a fixed penalty decides the number of heads itself; "
            f"leave one out, e.g. {given[0]}=null",
        )
    if len(given) == 2:
        yield "prune.target", "prune.target and prune.targets are both given: leave one out, e.g. prune.target=null"
    if verb == "prune" and not given and not penalty:
        yield "prune.target", "nothing says how many heads to keep: give --target 10, --targets 32,16 or --penalty 0.01"
    if cfg.prune.targets is not None and not cfg.prune.targets:
        yield "prune.targets", "prune.targets=[]: is empty; give at least one number of heads, e.g. --targets 32,16"
    if penalty and cfg.prune.rivals:
        rivals = "prune.rivals: rivals have targets, which a fixed penalty does not go with; set prune.rivals={}"
        yield "prune.rivals", rivals


def _counts(cfg: Config) -> Iterator[Problem]:
    """Whether every target is a possible number of heads."""
    total, kinds = heads_in_scope(cfg), ", ".join(scope_of(cfg))
    lists: dict[str, list[int]] = {"prune.targets": list(cfg.prune.targets or [])}
    if cfg.prune.target is not None:
        lists["prune.target"] = [cfg.prune.target]
    lists |= {f"prune.rivals.{name}": list(targets) for name, targets in cfg.prune.rivals.items()}
    for key, targets in lists.items():
        for target in targets:
            if not 0 <= target <= total:
                yield key, f"{key}={target}: has to be from 0 to {total}, the number of heads within {kinds}"
        if len(set(targets)) < len(targets):
            yield key, f"{key}: {', '.join(map(str, targets))} has the same number twice"
    targets = targets_of(cfg)
    for name, counts in cfg.prune.rivals.items():
        extra = [count for count in counts if count not in targets and 0 <= count <= total]
        if targets and extra:
            numbers, listed = ", ".join(map(str, extra)), ",".join(map(str, [*targets, *extra]))
            yield (
                "prune.rivals",
                f"prune.rivals.{name}: {numbers} is not among the targets, and a rival gets the updates of its target; "
                f"leave it out or set prune.targets=[{listed}]",
            )
    if cfg.method.name in cfg.prune.rivals:
        yield (
            "prune.rivals",
            f"prune.rivals: {cfg.method.name} is the method itself; put its targets into prune.targets",
        )


def _groups(cfg: Config, verb: str) -> Iterator[Problem]:
    """Whether the groups of ``gha`` make its targets possible, and its settings go together."""
    gha, heads, layers = cfg.method.gha, cfg.model.heads, layers_in_scope(cfg)
    rival = cfg.prune.rivals.get("gha")
    if cfg.method.name != "gha" and rival is None:
        if "ght" in cfg.prune.controls:
            yield "prune.controls", f"prune.controls: ght belongs to method gha; leave it out with {cfg.method.name}"
        return
    for name in ("groups", "vote_groups"):
        if (count := getattr(gha, name)) is not None and count > heads:
            yield f"method.gha.{name}", f"method.gha.{name}={count}: has to be from 1 to {heads}, the heads of a layer"
    for target in targets_of(cfg) if cfg.method.name == "gha" else rival or ():
        if 0 <= target < layers:
            text = f"{target} of {heads * layers} heads: gha keeps at least one in each of the {layers} layers in scope"
            yield "prune.target", f"{text}; take {layers} or more, or set prune.scope"
        most = groups_of(cfg, target)[1] * layers
        if most < target <= heads * layers:
            text = f"{target} heads: a vote of {most // layers} groups in {layers} layers keeps {most}"
            yield "method.gha.vote_groups", f"{text}; set method.gha.groups or method.gha.vote_groups higher"
    if gha.start == "base":
        later = {"lite": gha.lite, "vote_epoch": gha.vote_epoch is not None, "threshold": gha.threshold is not None}
        for name in [name for name, given in later.items() if given]:
            yield f"method.gha.{name}", f"method.gha.{name}: is about a model trained with method.gha.start=random"
        if verb == "train":
            text = "train starts from random initialisation; to go on from a base: headlab prune"
            yield "method.gha.start", f"method.gha.start=base: {text}"


def _files(cfg: Config, verb: str) -> Iterator[Problem]:
    """Whether the user's own text is there."""
    from headlab.corpora.files import locate  # loads SentencePiece

    try:
        locate(cfg.data)
    except UserError as error:
        if verb == "evaluate":
            advice = "evaluate needs the corpus of the run; start it in the folder that the run was made from"
            yield "data.files", f"{error.problems[0]}; {advice}"
        else:
            yield from (("data.files", line) for line in error.problems)
