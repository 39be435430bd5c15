"""The stages that remove heads: a look at the valid set where a method needs one, the cut, and fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headlab import identities
from headlab.attention.removal import remove_heads
from headlab.averaging import averaged, candidates
from headlab.checks import scope_of
from headlab.config import OptimConfig
from headlab.errors import UserError
from headlab.fairseq_plugin.checkpoints import read_tensors
from headlab.fairseq_plugin.model import HeadlabTransformer, detached_state, load_weights
from headlab.fairseq_plugin.modelfiles import save_model
from headlab.fairseq_plugin.passes import DevSet, frozen_loss
from headlab.fairseq_plugin.training import Span
from headlab.measure import Spent
from headlab.progress import say
from headlab.runs import RunDir, read_json, write_json
from headlab.stages import Stages


@dataclass(frozen=True)
class PruningStages(Stages):
    """All stages of every method that has none of its own."""

    # --- stages -----------------------------------------------------------------------------------------------

    def score(self, base: RunDir, method: str) -> RunDir:
        """What a method that looks at the valid set says about the heads of ``base``, for all targets: scores.json."""
        cfg = self.cfg
        identity = identities.of_score(cfg, self.machine, base, method, self._method_settings(method))
        run = RunDir(Path(cfg.runs_dir), "score", f"{cfg.data.name}-{method}", identity)
        with self._making(run, identity) as started:
            if started is not None:
                model, task, _ = self._fresh(base)
                model.to(self.machine.device)
                chosen = self._method(method, [])
                chosen.attach(model, scope_of(cfg))
                dev = DevSet(model, task, cfg.optim, f"score {run.path.name}", chosen.passes)
                chosen.score(dev, frozen_loss(model, task, chosen.differentiates))
                for warning in chosen.warnings():
                    say(f"warning: {run}: {warning}")
                write_json(run / "scores.json", {"passes": dev.passes, **chosen.state_dict()})
                self._finish(run, started, {"base": base / "model.safetensors"})
        return run

    def pruned(self, base: RunDir, method: str, targets: list[int], target: int | None) -> RunDir:
        """The model with exactly ``target`` heads of the scope left (None: as many as the gates leave open).

        A method that trains branches off its selection run when that has reached the target; others prune the
        base, and spend on fine-tuning what selection would have taken.
        """
        branch = self._branch(targets, target)
        stop = branch + self.cfg.prune.finetune_updates
        optim = identities.continuation(self.cfg, stop)
        run, identity = self._after("pruned", base, optim, method, targets, target, stop=stop)
        with self._making(run, identity) as started:
            if started is not None:
                model, task, corpus = self._from_base(base)
                inputs = self._remove(run, model, base, method, targets, target)
                span = Span(branch if self.trains(method) else 0, stop)
                self._fit(run, model, task, optim, span, candidates(optim, span))
                weights = averaged(run.path, optim, span) if span.start < span.stop else detached_state(model)
                save_model(model, weights, corpus, run.path)
                self._finish(run, started, inputs)
        return run

    def untuned(self, base: RunDir, method: str, targets: list[int], target: int | None) -> RunDir:
        """What :meth:`pruned` starts its fine-tuning from: the heads removed, nothing else changed."""
        optim = identities.continuation(self.cfg, self._branch(targets, target))
        run, identity = self._after("untuned", base, optim, method, targets, target)
        with self._making(run, identity) as started:
            if started is not None:
                model, _, corpus = self._from_base(base)
                inputs = self._remove(run, model, base, method, targets, target)
                save_model(model, detached_state(model), corpus, run.path)
                self._finish(run, started, inputs)
        return run

    # --- what rows tell of them -------------------------------------------------------------------------------

    def spent(
        self, base: RunDir, method: str, targets: list[int], target: int | None, run: RunDir, tuned: bool = True
    ) -> Spent:
        """What the pruned model in ``run`` cost beyond updates of the base, and in seconds with them."""
        finetune, branch = self.cfg.prune.finetune_updates if tuned else 0, self._branch(targets, target)
        seconds = self.seconds(base.path) + self.seconds(run.path)
        source = self._source(base, method, targets, target)
        if source is None or not self.trains(method):
            looked = 0.0 if source is None else self.seconds(source.path)
            return Spent(0, branch + finetune if tuned else 0, seconds + looked)
        whole = self.cfg.prune.selection_updates * max(len(targets), 1)
        share = branch / whole if self.chains(method) else 1.0
        return Spent(branch, finetune, seconds + self.seconds(source.path) * share)

    def scores(self, method: str, run: RunDir) -> dict[str, float]:
        """What the heads of a pruned model, and those removed, had as scores."""
        return dict(read_json(run / "selection.json")["scores"])

    def passes(self, run: RunDir) -> int:
        """How often the valid set was looked at to score the heads of a pruned model."""
        return int(read_json(run / "selection.json").get("passes", 0)) if (run / "selection.json").exists() else 0

    def looks(self, method: str) -> bool:
        """Whether ``method`` looks at the valid set and does not train."""
        return not self.trains(method) and self._method(method, []).looks

    # --- the work inside --------------------------------------------------------------------------------------

    def _branch(self, targets: list[int], target: int | None) -> int:
        """After how many updates the selection has reached ``target``."""
        return self.cfg.prune.selection_updates * (targets.index(target) + 1 if target is not None else 1)

    def _selection(self, base: RunDir, method: str, targets: list[int], target: int | None) -> RunDir:
        """The selection run that ``target`` branches off.

        It passes through all targets, or is one for this target alone, with as many updates as the other would have
        had by then, so that methods are compared at equal updates.
        """
        if target is None or self.chains(method):
            return self.select(base, method, targets)
        prune = replace(self.cfg.prune, target=target, targets=None, selection_updates=self._branch(targets, target))
        return replace(self, cfg=replace(self.cfg, prune=prune)).select(base, method, [target])

    def _source(self, base: RunDir, method: str, targets: list[int], target: int | None) -> RunDir | None:
        """The run that knows what ``method`` says about heads; None where the weights of ``base`` do."""
        if self.trains(method):
            return self._selection(base, method, targets, target)
        return self.score(base, method) if self.looks(method) else None

    def _after(
        self, stage: str, base: RunDir, optim: OptimConfig, method: str, targets: list[int], target: int | None,
        **parts: Any,
    ) -> tuple[RunDir, dict[str, Any]]:  # fmt: skip
        """The run of a model whose heads are removed, and its identity."""
        source = self._source(base, method, targets, target)
        identity = self._continuation(
            stage, base, optim, method=method, settings=self._method_settings(method), target=target,
            selection=source.path.name if source is not None else None, branch=self._branch(targets, target), **parts,
        )  # fmt: skip
        label = f"{self.cfg.data.name}-{method}-{'lambda' if target is None else target}"
        return RunDir(Path(self.cfg.runs_dir), stage, label, identity), identity

    def _remove(
        self, run: RunDir, model: HeadlabTransformer, base: RunDir, method: str, targets: list[int], target: int | None
    ) -> dict[str, Path]:
        """Cut ``model``, fresh from ``base``, down to its best heads: selection.json. Returns what that came from."""
        chosen = self._method(method, [] if target is None else [target])
        chosen.attach(model, scope_of(self.cfg))
        inputs, passes = {"base": base / "model.safetensors"}, 0
        source, branch = self._source(base, method, targets, target), self._branch(targets, target)
        if source is not None and chosen.trains:
            inputs["selection"] = source / "states" / f"{branch}.safetensors"
            load_weights(model, read_tensors(inputs["selection"]))
        elif source is not None:
            inputs["selection"] = source / "scores.json"
            found = read_json(inputs["selection"])
            chosen.load_state_dict(found)
            passes = found["passes"]
        emergent = chosen.emergent()
        count = emergent if target is None else target
        assert count is not None  # checks.py refuses a ranking method without a target
        layout, factors = chosen.keep(count, model.layout()), chosen.factors()
        scores = {str(head): score for head, score in chosen.scores().items()}
        selection = {"open_heads": emergent, "kept": count, "update": branch, "passes": passes, "scores": scores}
        write_json(run / "selection.json", selection)
        try:
            remove_heads(model, layout, factors)
        except ValueError as error:  # with method.l0.fold=gate
            raise UserError(f"{run}: {error}; set method.l0.fold=one or a smaller target") from None
        return inputs
