"""The stages of a run: each makes one run directory, or finds it finished.

data → base → select (gates over the base's weights), beside control and scratch; what removes heads is in
:mod:`headlab.pruning`.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from headlab import corpora, identities
from headlab.attention.heads import Layout
from headlab.averaging import averaged, candidates
from headlab.checks import scope_of
from headlab.compose import save_config
from headlab.config import Config, OptimConfig
from headlab.fairseq_plugin.binarize import binarize
from headlab.fairseq_plugin.components import HeadlabTask
from headlab.fairseq_plugin.model import HeadlabTransformer, build_model, freeze_decoder
from headlab.fairseq_plugin.modelfiles import save_model, saved_model
from headlab.fairseq_plugin.setup import Corpus, Machine, load_task
from headlab.fairseq_plugin.training import Job, Span, fit
from headlab.lite import as_small_as
from headlab.measure import run_of
from headlab.methods.base import Method
from headlab.methods.dsp import DSP
from headlab.methods.l0 import L0
from headlab.orderings import ordering
from headlab.progress import say
from headlab.runs import RunDir, atomic_write, manifest, read_json, write_json


class Unfinished(Exception):
    """A run is asked for that would have to be made."""


@dataclass(frozen=True)
class Stages:
    """The stages of one configuration on one machine."""

    cfg: Config
    machine: Machine
    told: set[Path] = field(default_factory=set)  # finished runs that were named already
    looking: bool = False  # raise Unfinished instead of making a run

    # --- stages -----------------------------------------------------------------------------------------------

    def data(self) -> RunDir:
        """Text, pieces and fairseq's binary form of the corpus."""
        data = self.cfg.data
        joint = self.cfg.model.share_all_embeddings
        identity = {"version": identities.VERSIONS["data"], **corpora.identity(data), "joint": joint}
        run = RunDir(Path(self.cfg.runs_dir), "data", data.name, identity)
        with self._making(run, identity) as started:
            if started is not None:
                corpora.build(data, run.path, corpora.cache_dir())
                binarize(run.path, data.source_lang, data.target_lang, joint)
                pieces = run / "pieces.model"
                self._finish(run, started, {"pieces": pieces})
        return run

    def base(self) -> RunDir:
        """The trained model that pruning starts from, or the one that ``base=`` names."""
        cfg, run = self.cfg, self.base_run()
        if cfg.base is None:
            with self._making(run, self._base_identity()) as started:
                if started is not None:
                    self._train_new(run, self.data(), cfg.optim, None, started)
        return run

    def base_run(self) -> RunDir:
        """Where the base is, or will be.

        The number of threads is part of what a run is, but of no weight here: a base that is finished with another
        number is taken.
        """
        cfg = self.cfg
        if cfg.base is not None:
            return RunDir.at(Path(cfg.base))
        identity = self._base_identity()
        run = RunDir(Path(cfg.runs_dir), "base", cfg.data.name, identity)
        other_threads = _finished_like(run, identity, lambda one: {**one, "machine": {**one["machine"], "threads": 0}})
        return next((other for other, _ in other_threads), run)

    def _base_identity(self) -> dict[str, Any]:
        return identities.of_new(self.cfg, self.machine, self.data(), self.cfg.optim)

    def scratch(self, layout: Layout, updates: int) -> RunDir:
        """A model with a pruned layout trained from random initialisation for ``updates`` updates."""
        cfg = self.cfg
        data, optim = self.data(), replace(cfg.optim, updates=updates)
        identity = identities.of_new(cfg, self.machine, data, optim, layout=str(layout))
        run = RunDir(Path(cfg.runs_dir), "scratch", f"{cfg.data.name}-{layout.count()}", identity)
        with self._making(run, identity) as started:
            if started is not None:
                self._train_new(run, data, optim, layout, started)
        return run

    def alone(self, kind: str, layout: Layout, updates: int) -> RunDir:
        """What a pruned model of ``layout`` has to beat, from random initialisation: scratch, lite1 or lite2."""
        if kind == "scratch":
            return self.scratch(layout, updates)
        shape = as_small_as(self.cfg.model, layout)[kind]
        full = Layout.full(shape.encoder_layers, shape.decoder_layers, shape.heads)
        return replace(self, cfg=replace(self.cfg, model=shape)).scratch(full, updates)

    def control(self, base: RunDir, points: Collection[int]) -> dict[int, Path]:
        """The base trained on with nothing pruned; a model folder for each of ``points`` updates."""
        optim = identities.continuation(self.cfg, max(points))
        identity = self._continuation("control", base, optim, points=sorted(points))
        run = RunDir(Path(self.cfg.runs_dir), "control", self.cfg.data.name, identity)
        run = _one_that_covers(run, identity, points)
        with self._making(run, identity) as started:
            if started is not None:
                model, task, corpus = self._from_base(base)
                states = {update for point in points for update in candidates(optim, Span(0, point))}
                self._fit(run, model, task, optim, Span(0, max(points)), states)
                for point in sorted(points):
                    folder = run / f"at-{point}"
                    folder.mkdir(exist_ok=True)
                    save_model(model, averaged(run.path, optim, Span(0, point)), corpus, folder)
                    save_config(self.cfg, folder / "config.yaml")
                    atomic_write(folder / "DONE", "")  # a model to be used like that of any finished run
                self._finish(run, started, {"base": base / "model.safetensors"})
        return {point: run / f"at-{point}" for point in points}

    def select(self, base: RunDir, method: str, targets: list[int]) -> RunDir:
        """Train with the method's loss; the weights of every branching point are kept in ``states/``."""
        per_target = self.cfg.prune.selection_updates
        stop = per_target * max(len(targets), 1)
        optim = identities.continuation(self.cfg, stop)
        identity = self._continuation(
            "select", base, optim, method=method, settings=self._method_settings(method), targets=targets,
            per_target=per_target,
        )  # fmt: skip
        run = RunDir(Path(self.cfg.runs_dir), "select", f"{self.cfg.data.name}-{method}", identity)
        with self._making(run, identity) as started:
            if started is not None:
                model, task, _ = self._from_base(base)
                chosen = self._method(method, targets)
                if chosen.freezes:
                    model.requires_grad_(False)
                chosen.attach(model, scope_of(self.cfg))
                branches = range(per_target, stop + 1, per_target)
                self._fit(run, model, task, optim, Span(0, stop), branches, chosen)
                for warning in chosen.warnings():
                    say(f"warning: {run}: {warning}")
                write_json(run / "scores.json", {str(head): score for head, score in chosen.scores().items()})
                self._finish(run, started, {"base": base / "model.safetensors"}, keep=("states",))
        return run

    # --- the work inside --------------------------------------------------------------------------------------

    def _continuation(self, stage: str, base: RunDir, optim: OptimConfig, **parts: Any) -> dict[str, Any]:
        return identities.of_continuation(self.cfg, self.machine, stage, base, optim, **parts)

    def _method_settings(self, method: str) -> dict[str, Any]:
        settings = getattr(self.cfg.method, method, None)
        return {} if settings is None else asdict(settings)

    def trains(self, method: str) -> bool:
        """Whether ``method`` spends updates on selecting heads."""
        return self._method(method, []).trains

    def chains(self, method: str) -> bool:
        """Whether one selection of ``method`` serves all targets."""
        return self._method(method, []).chain

    def seconds(self, run: Path) -> float:
        """Wall time of the finished run that a model folder belongs to."""
        return float(read_json(run_of(run) / "manifest.json")["wall_seconds"])

    def _method(self, method: str, targets: list[int]) -> Method:
        if method == "dsp":
            return DSP(self.cfg.method.dsp, targets[-1] if targets else 0)
        if method != "l0":
            return ordering(self.cfg, method)
        return L0(self.cfg.method.l0, targets, self.cfg.prune.selection_updates)

    @property
    def corpus_langs(self) -> tuple[str, str]:
        """Source and target language."""
        return self.cfg.data.source_lang, self.cfg.data.target_lang

    def _from_base(self, base: RunDir) -> tuple[HeadlabTransformer, HeadlabTask, Corpus]:
        """A fresh copy of the base, ready to be trained on, its decoder frozen where the scope asks for it."""
        model, task, corpus = self._fresh(base)
        if scope_of(self.cfg) == ("enc-self",):
            freeze_decoder(model)
        return model, task, corpus

    def _fresh(
        self, start: RunDir | None, layout: Layout | None = None
    ) -> tuple[HeadlabTransformer, HeadlabTask, Corpus]:
        """The model of a finished run or, without one, a random initialisation with the heads of ``layout``."""
        corpus = Corpus(self.data() / "bin", *self.corpus_langs)
        task = load_task(corpus, self.machine)
        torch.manual_seed(self.cfg.seed)
        if start is not None:
            return saved_model(start.path, self.cfg.model, task), task, corpus
        return build_model(self.cfg.model, task.source_dictionary, task.target_dictionary, layout), task, corpus

    def _train_new(
        self, run: RunDir, data: RunDir, optim: OptimConfig, layout: Layout | None, started: float,
        method: Method | None = None, keep: Collection[str] = (),
    ) -> None:  # fmt: skip
        model, task, corpus = self._fresh(None, layout)
        if method is not None:
            method.attach(model, scope_of(self.cfg))
        span = Span(0, optim.updates)
        self._fit(run, model, task, optim, span, candidates(optim, span), method)
        save_model(model, averaged(run.path, optim, span), corpus, run.path)
        self._finish(run, started, {"pieces": data / "pieces.model"}, keep)

    def _fit(
        self,
        run: RunDir,
        model: HeadlabTransformer,
        task: HeadlabTask,
        optim: OptimConfig,
        span: Span,
        states: Collection[int],
        method: Method | None = None,
    ) -> None:
        """Train over ``span``, saving the weights after the updates ``states``."""
        if span.start < span.stop:
            rate = method.learning_rate if method is not None else 0.0
            title = f"{run.path.parent.name} {run.path.name}"
            fit(Job(title, model, task, optim, self.cfg.seed, self.machine, run.path, span, set(states), method, rate))

    @contextmanager
    def _making(self, run: RunDir, identity: dict[str, Any]) -> Iterator[float | None]:
        """Hold the run directory; gives the start time, or None where the run is finished already."""
        if run.done:
            if run.path not in self.told:
                say(f"{run}: finished")
            self.told.add(run.path)
            yield None
            return
        if self.looking:
            raise Unfinished(run.path)
        with run.open():
            if (run / "DONE").is_file():  # by another process, while this one waited for it
                say(f"{run}: finished")
                yield None
                return
            save_config(self.cfg, run / "config.yaml")
            write_json(run / "identity.json", identity)
            say(f"{run}: {'going on' if (run / 'metrics.jsonl').exists() else 'starting'}")
            self.told.add(run.path)
            spent = read_json(run / "elapsed.json") if (run / "elapsed.json").exists() else 0.0
            started = time.time() - spent  # what an earlier, interrupted start took counts too
            try:
                yield started
            finally:
                if not run.done:
                    write_json(run / "elapsed.json", time.time() - started)

    def _finish(self, run: RunDir, started: float, inputs: dict[str, Path], keep: Collection[str] = ()) -> None:
        repo = Path(__file__).parents[1]
        cfg = asdict(self.cfg)
        cfg["machine"] |= asdict(self.machine)
        record = manifest(sys.argv[1:], cfg, inputs, started, repo if (repo / ".git").exists() else None)
        write_json(run / "manifest.json", record)
        (run / "elapsed.json").unlink(missing_ok=True)
        if not self.cfg.keep_checkpoints:
            for folder in {"checkpoints", "states"} - set(keep):
                shutil.rmtree(run / folder, ignore_errors=True)
        run.finish()


def _one_that_covers(run: RunDir, identity: dict[str, Any], points: Collection[int]) -> RunDir:
    """``run``, or if that is not finished a finished control that was only measured at more points."""
    alike = _finished_like(run, identity, lambda one: {**one, "points": None})
    return next((other for other, found in alike if set(points) <= set(found["points"])), run)


def _finished_like(
    run: RunDir, identity: dict[str, Any], without: Callable[[dict[str, Any]], dict[str, Any]]
) -> Iterator[tuple[RunDir, dict[str, Any]]]:
    """Finished runs beside ``run``, with their identities, that are what it is ``without`` something; itself first."""
    if run.done:
        yield run, identity
        return
    for path in sorted(run.path.parent.glob("*/identity.json")):
        found = read_json(path)
        if without(found) == without(identity) and (path.parent / "DONE").is_file():
            yield RunDir.at(path.parent), found
