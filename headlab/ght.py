"""The stages of Grouped Head Attention (Ni et al. 2023), beside those of every method.

start=random   ght (constraint from random initialisation on) → vote → rest (cut; what is left of the base's schedule,
               where the vote was before its end) → pruned (cut, fine-tuned without the constraint)
start=base     base → select (constraint on the base's weights) → vote → pruned
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headlab import identities
from headlab.attention.removal import remove_heads
from headlab.averaging import averaged, candidates
from headlab.checks import groups_of, label_of, scope_of
from headlab.config import OptimConfig
from headlab.errors import UserError
from headlab.fairseq_plugin.checkpoints import read_tensors
from headlab.fairseq_plugin.components import HeadlabTask
from headlab.fairseq_plugin.model import HeadlabTransformer, detached_state, load_weights
from headlab.fairseq_plugin.modelfiles import save_model
from headlab.fairseq_plugin.passes import frozen_loss, training_batches
from headlab.fairseq_plugin.setup import Corpus
from headlab.fairseq_plugin.training import Span
from headlab.measure import Spent
from headlab.methods.base import Method
from headlab.methods.gha import GHA
from headlab.methods.voting import LayerVote
from headlab.pruning import PruningStages
from headlab.runs import RunDir, digest, read_json, sha256_of, write_json


@dataclass(frozen=True)
class Voters:
    """The weights that vote: of a finished run, or a state that a training kept; None is a random initialisation.

    ``trained`` are the runs that it took to get there, ``update`` how far they are in their schedule.
    """

    start: RunDir | None
    weights: Path | None
    update: int
    trained: tuple[RunDir, ...] = ()


@dataclass(frozen=True)
class GroupedStages(PruningStages):
    """All stages; those of ``gha`` are its own."""

    # --- what the pipeline asks for ---------------------------------------------------------------------------

    def pruned(self, base: RunDir, method: str, targets: list[int], target: int | None) -> RunDir:
        """The model with exactly ``target`` heads left, and ``votes.json`` where heads voted."""
        if method != "gha" or target is None:
            return super().pruned(base, method, targets, target)
        return self._own()._pruned(base, targets, target, tuned=True)

    def untuned(self, base: RunDir, method: str, targets: list[int], target: int | None) -> RunDir:
        """What :meth:`pruned` starts its fine-tuning from."""
        if method != "gha" or target is None:
            return super().untuned(base, method, targets, target)
        return self._own()._pruned(base, targets, target, tuned=False)

    def scores(self, method: str, run: RunDir) -> dict[str, float]:
        """Of ``gha`` the votes."""
        if method != "gha":
            return super().scores(method, run)
        votes = [LayerVote.from_json(layer) for layer in read_json(run / "votes.json")["layers"]]
        return {str(head): score for vote in votes for head, score in vote.scores.items()}

    def ght(self, target: int | None) -> RunDir | None:
        """The group-constrained model with all heads that ``target`` is cut from; None where there is none."""
        gha = self.cfg.method.gha
        if gha.start == "base" or gha.constraint not in ("first", "both") or gha.vote_epoch == 0:
            return None
        return self._own()._ght(groups_of(self.cfg, target)[0])

    def before(self, target: int | None) -> RunDir | None:
        """:meth:`ght` as a row of its own: not where only what follows it differs from the paper's case."""
        gha = self.cfg.method.gha
        return self.ght(target) if (gha.constraint, gha.vote) == ("first", "per_group") else None

    def trained_on(self, target: int | None, points: Collection[int]) -> dict[int, Path]:
        """The control of the vote: :meth:`before` trained on as what is cut from it, with all its heads."""
        ght = self.before(target)
        return {} if ght is None else self._own().control(ght, points)

    def variant(
        self, method: str, target: int | None, unpruned: bool = False, tuned: bool = True, updates: int = 0
    ) -> str:
        """The label of a row: that of the command, and what of ``gha`` differs from the paper's case.

        ``unpruned`` is for :meth:`before`, ``updates`` how far that was trained on.
        """
        gha = self.cfg.method.gha
        label = "-".join(part for part in (label_of(self.cfg), "" if tuned else "untuned") if part)
        if method != "gha":
            return label
        groups, voting = groups_of(self.cfg, target)
        parts = [f"ght-c{groups}" if unpruned else "", f"u{updates}" if updates else ""]
        parts += ["from-base" if gha.start == "base" else "", "lite" if gha.lite else ""]
        parts += [f"vote-c{voting}" if voting != groups and not unpruned else ""]
        return "-".join(part for part in dict.fromkeys([*parts, label]) if part)

    def spent(
        self, base: RunDir, method: str, targets: list[int], target: int | None, run: RunDir, tuned: bool = True
    ) -> Spent:
        """What a pruned model cost; of ``gha`` the epoch of votes too, in seconds."""
        if method != "gha" or target is None:
            return super().spent(base, method, targets, target, run, tuned)
        own, gha = self._own(), self.cfg.method.gha
        voters = own._voters(base, targets, target)
        made = [*voters.trained, own._vote(voters, target), *own._rest_of(voters, target), run]
        _, stop = self._points(targets, target)
        selection = voters.update if gha.start == "base" else 0
        return Spent(selection, stop - selection if tuned else 0, sum(self.seconds(one.path) for one in made))

    def base_votes(self, base: RunDir, target: int) -> RunDir:
        """The same vote by the base, which was trained without the constraint: what its groups look like."""
        return self._vote(Voters(base, None, self.cfg.optim.updates), target)

    # --- stages -----------------------------------------------------------------------------------------------

    def _ght(self, groups: int) -> RunDir:
        cfg, gha, data = self.cfg, self.cfg.method.gha, self.data()
        settings = {**self._constraint(groups), "vote_epoch": gha.vote_epoch, "threshold": gha.threshold}
        identity = identities.of_new(
            cfg, self.machine, data, cfg.optim, name="ght", settings=settings, scope=list(scope_of(cfg))
        )
        run = RunDir(Path(cfg.runs_dir), "ght", f"{cfg.data.name}-c{groups}", identity)
        with self._making(run, identity) as started:
            if started is not None:
                keep = () if gha.vote_epoch is None and gha.threshold is None else ("states",)
                self._train_new(run, data, cfg.optim, None, started, self._gha(groups, "first"), keep)
        return run

    def _voters(self, base: RunDir, targets: list[int], target: int) -> Voters:
        """Train, or find, the weights that vote for ``target``."""
        cfg, gha = self.cfg, self.cfg.method.gha
        groups, updates = groups_of(cfg, target)[0], cfg.optim.updates
        constrained = gha.constraint in ("first", "both")
        if gha.start == "base":
            if not constrained:
                return Voters(base, None, 0, (base,))
            branch, _ = self._points(targets, target)
            selection = self.select(base, "gha", targets[: targets.index(target) + 1])
            return Voters(base, selection / "states" / f"{branch}.safetensors", branch, (base, selection))
        if gha.vote_epoch == 0:
            return Voters(None, None, 0)
        if not constrained and gha.vote_epoch is None and gha.threshold is None:
            own = self.base()
            return Voters(own, None, updates, (own,))
        run = self._ght(groups)
        update = _vote_update(run)
        if update is None:
            return Voters(run, None, updates, (run,))
        return Voters(run, run / "states" / f"{update}.safetensors", update, (run,))

    def _vote(self, voters: Voters, target: int) -> RunDir:
        """One epoch of votes, the model frozen: ``votes.json``."""
        cfg, groups = self.cfg, groups_of(self.cfg, target)[1]
        weights = voters.weights or (voters.start / "model.safetensors" if voters.start is not None else None)
        model_shape = {k: v for k, v in asdict(cfg.model).items() if k != "name"}
        who = digest(model_shape) if weights is None else digest(sha256_of(weights))
        identity = identities.of_vote(cfg, self.machine, self.data(), who, map=cfg.method.gha.map, groups=groups)
        run = RunDir(Path(cfg.runs_dir), "vote", f"{cfg.data.name}-c{groups}", identity)
        with self._making(run, identity) as started:
            if started is not None:
                model, task, _ = self._voting_model(voters)
                model.to(self.machine.device)
                chosen = self._gha(groups, "first")
                chosen.attach(model, scope_of(cfg))
                chosen.score(
                    training_batches(model, task, cfg.optim, cfg.seed, f"vote {run.path.name}"),
                    frozen_loss(model, task),
                )
                write_json(run / "votes.json", {"groups": groups, "layers": [asdict(v) for v in chosen.polled]})
                self._finish(run, started, {} if weights is None else {"weights": weights})
        return run

    def _rest_of(self, voters: Voters, target: int) -> list[RunDir]:
        """Where the vote was before the end of the base's schedule: the cut model, trained to its end."""
        cfg = self.cfg
        span = Span(voters.update, cfg.optim.updates)
        if cfg.method.gha.start == "base" or span.start >= span.stop:
            return []
        identity = identities.of_new(
            cfg, self.machine, self.data(), cfg.optim, name="rest", **self._cut_identity(voters, target)
        )
        run = RunDir(Path(cfg.runs_dir), "rest", f"{cfg.data.name}-{target}", identity)
        with self._making(run, identity) as started:
            if started is not None:
                model, task, corpus = self._voting_model(voters)
                self._cut(run, model, voters, target)
                self._train(run, model, task, corpus, cfg.optim, span, target)
                self._finish(run, started, {} if voters.weights is None else {"state": voters.weights})
        return [run]

    def _pruned(self, base: RunDir, targets: list[int], target: int, tuned: bool) -> RunDir:
        cfg = self.cfg
        voters = self._voters(base, targets, target)
        rest = self._rest_of(voters, target)
        start = rest[0] if rest else voters.start
        assert start is not None  # a random initialisation is trained by rest
        first = voters.update if cfg.method.gha.start == "base" else 0
        span = Span(first, self._points(targets, target)[1] if tuned else first)
        optim = identities.continuation(cfg, span.stop)
        stage = "pruned" if tuned else "untuned"
        identity = self._continuation(
            stage, start, optim, method="gha", start=span.start, stop=span.stop, **self._cut_identity(voters, target)
        )
        run = RunDir(Path(cfg.runs_dir), stage, f"{cfg.data.name}-gha-{target}", identity)
        with self._making(run, identity) as started:
            if started is not None:
                model, task, corpus = self._from_base(start)
                inputs = {"base": start / "model.safetensors"}
                if voters.weights is not None and not rest:
                    inputs["selection"] = voters.weights
                    load_weights(model, read_tensors(voters.weights))
                self._cut(run, model, voters, target)
                self._train(run, model, task, corpus, optim, span, target)
                self._finish(run, started, inputs)
        return run

    # --- the work inside --------------------------------------------------------------------------------------

    def _own(self) -> GroupedStages:
        """These stages for the model that is grouped, whose feed-forward layers may be half as wide."""
        model = self.cfg.model
        if not self.cfg.method.gha.lite:
            return self
        gha = replace(self.cfg.method.gha, lite=False)
        half = replace(self.cfg, model=replace(model, ffn=model.ffn // 2), method=replace(self.cfg.method, gha=gha))
        return replace(self, cfg=half)

    def _points(self, targets: list[int], target: int) -> tuple[int, int]:
        """Updates after the base: of the selection of ``target``, and of all."""
        branch = self.cfg.prune.selection_updates * (targets.index(target) + 1)
        return branch, branch + self.cfg.prune.finetune_updates

    def _constraint(self, groups: int) -> dict[str, Any]:
        gha = self.cfg.method.gha
        settings = {"map": gha.map, "alpha": gha.alpha, "beta": gha.beta, "weighting": gha.weighting, "groups": groups}
        return settings if gha.constraint in ("first", "both") else {**settings, "alpha": 0.0, "beta": 0.0}

    def _gha(self, groups: int, stage: str) -> GHA:
        """The method as it is in the ``first`` stage or the ``second``: without weight where there is no constraint."""
        gha = self.cfg.method.gha
        if gha.constraint not in (stage, "both"):
            gha = replace(gha, alpha=0.0, beta=0.0)
        return GHA(gha, groups, self.cfg.seed)

    def _method(self, method: str, targets: list[int]) -> Method:
        if method != "gha":
            return super()._method(method, targets)
        return self._gha(groups_of(self.cfg, targets[-1] if targets else None)[0], "first")

    def _method_settings(self, method: str) -> dict[str, Any]:
        if method != "gha":
            return super()._method_settings(method)
        gha = self.cfg.method.gha
        return {**self._constraint(0), "groups": gha.groups}

    def _voting_model(self, voters: Voters) -> tuple[HeadlabTransformer, HeadlabTask, Corpus]:
        model, task, corpus = self._fresh(voters.start)
        if voters.weights is not None:
            load_weights(model, read_tensors(voters.weights))
        return model, task, corpus

    def _cut_identity(self, voters: Voters, target: int) -> dict[str, Any]:
        """What decides which heads stay, and with what they are trained on."""
        gha = self.cfg.method.gha
        second = None
        if self._in_second:
            second = {"map": gha.map, "alpha": gha.alpha, "beta": gha.beta, "weighting": gha.weighting}
            second["groups"] = groups_of(self.cfg, target)[0]
        return {"target": target, "vote": self._vote(voters, target).path.name, "how": gha.vote, "second": second}

    @property
    def _in_second(self) -> bool:
        return self.cfg.method.gha.constraint in ("second", "both")

    def _cut(self, run: RunDir, model: HeadlabTransformer, voters: Voters, target: int) -> None:
        """Remove all heads but those that stay; the votes are copied to ``votes.json`` with what came of them."""
        votes = read_json(self._vote(voters, target) / "votes.json")
        chosen = self._gha(votes["groups"], "first")
        chosen.attach(model, scope_of(self.cfg))
        chosen.polled = [LayerVote.from_json(layer) for layer in votes["layers"]]
        try:
            layout = chosen.keep(target, model.layout())
        except ValueError as error:
            raise UserError(f"{run}: {error}; choose another target or set method.gha.vote_groups") from None
        chosen.detach()
        remove_heads(model, layout)
        write_json(run / "votes.json", {**votes, "update": voters.update, "layout": str(layout)})

    def _train(
        self, run: RunDir, model: HeadlabTransformer, task: HeadlabTask, corpus: Corpus, optim: OptimConfig,
        span: Span, target: int,
    ) -> None:  # fmt: skip
        """Train the cut model, with the constraint where the second stage has it, and save it."""
        method = None
        if self._in_second:
            method = self._gha(groups_of(self.cfg, target)[0], "second")
            method.attach(model, scope_of(self.cfg))
        self._fit(run, model, task, optim, span, candidates(optim, span), method)
        weights = averaged(run.path, optim, span) if span.start < span.stop else detached_state(model)
        save_model(model, weights, corpus, run.path)


def _vote_update(run: RunDir) -> int | None:
    """After which update a training kept the weights to vote on; None where it was at its end."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    update: int | None = json.loads(lines[-1]).get("vote_update")
    return update
