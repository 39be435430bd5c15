"""What makes a run the one it is: everything that can change its result, and nothing else."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from headlab.checks import scope_of
from headlab.config import Config, OptimConfig
from headlab.fairseq_plugin.setup import Machine
from headlab.runs import RunDir, digest, sha256_of

#: Raised when a stage's computation changes, so that results of older code are not taken for its own.
VERSIONS = {"data": 1, "base": 1, "continue": 1, "select": 1, "vote": 1, "score": 1}

#: What of the optimiser's settings cannot change a result.
WITHOUT_EFFECT = ("name", "log_every", "checkpoint_every")


def of_new(cfg: Config, machine: Machine, data: RunDir, optim: OptimConfig, **parts: Any) -> dict[str, Any]:
    """The identity of a model trained from random initialisation."""
    shape = {k: v for k, v in asdict(cfg.model).items() if k != "name"}
    return _of("base", machine, data=data.path.name, model=shape, optim=_settings(optim), seed=cfg.seed, **parts)


def of_continuation(
    cfg: Config, machine: Machine, stage: str, base: RunDir, optim: OptimConfig, **parts: Any
) -> dict[str, Any]:
    """The identity of a ``stage`` that goes on from the weights of ``base``."""
    settings = _settings(optim)
    if optim.schedule in ("inverse_sqrt", "constant"):
        settings.pop("updates")
    # lists, not tuples: the identity is compared with what identity.json gives back
    return _of(
        "select" if stage == "select" else "continue", machine, name=stage, base=base.path.name,
        base_is=digest(sha256_of(base / "model.safetensors")), optim=settings, seed=cfg.seed,
        scope=list(scope_of(cfg)), **parts,
    )  # fmt: skip


def of_vote(cfg: Config, machine: Machine, data: RunDir, weights: str, **parts: Any) -> dict[str, Any]:
    """The identity of an epoch of votes with frozen ``weights``."""
    batches = {"batch_tokens": cfg.optim.batch_tokens, "seed": cfg.seed}
    return _of("vote", machine, data=data.path.name, weights=weights, **batches, scope=list(scope_of(cfg)), **parts)


def of_score(cfg: Config, machine: Machine, base: RunDir, method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The identity of the scores that ``method`` gives the heads of ``base`` by looking at the valid set."""
    looked = {"batch_tokens": cfg.optim.batch_tokens, "scope": list(scope_of(cfg))}
    weights = digest(sha256_of(base / "model.safetensors"))
    return _of("score", machine, base=base.path.name, base_is=weights, **looked, method=method, settings=settings)


def continuation(cfg: Config, updates: int) -> OptimConfig:
    """The optimiser of everything that starts from the base: its own peak, and a warm-up that restarts."""
    prune = cfg.prune
    batch_tokens = cfg.optim.batch_tokens if prune.batch_tokens is None else prune.batch_tokens
    return replace(
        cfg.optim, lr=prune.lr, warmup=prune.warmup, schedule=prune.schedule, updates=updates, batch_tokens=batch_tokens
    )


def _of(stage: str, machine: Machine, **parts: Any) -> dict[str, Any]:
    return {"stage": stage, "version": VERSIONS[stage], "machine": asdict(machine), **parts}


def _settings(optim: OptimConfig) -> dict[str, Any]:
    settings = {k: v for k, v in asdict(optim).items() if k not in WITHOUT_EFFECT}
    if optim.average_rule == "last":
        settings.pop("validate_every")
    return settings
