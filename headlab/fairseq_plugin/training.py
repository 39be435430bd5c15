"""Training with fairseq's own Trainer, resumable at any moment, on one device or several."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq.data import iterators
from fairseq.logging import metrics
from fairseq.trainer import Trainer

from headlab.config import OptimConfig
from headlab.errors import RunError
from headlab.fairseq_plugin.checkpoints import Checkpoints, read_tensors, save_state
from headlab.fairseq_plugin.components import HeadlabTask, ScheduleConfig, TranslationLoss, learning_rate
from headlab.fairseq_plugin.model import HeadlabTransformer, load_weights, mark_matrices
from headlab.fairseq_plugin.passes import frozen_loss
from headlab.fairseq_plugin.setup import Machine, Rank, fairseq_config, join
from headlab.methods.base import Method
from headlab.progress import Progress
from headlab.runs import atomic_write


@dataclass(frozen=True)
class Span:
    """Updates ``start`` to ``stop`` of a schedule: a continuation may begin in the middle of one."""

    start: int
    stop: int


@dataclass
class Job:
    """One training: a model, a corpus, a schedule and perhaps a pruning method, over a span of updates.

    ``model`` is trained in place; parameters that do not require gradients stay as they are. Checkpoints go to
    ``work/checkpoints/``, weights after the updates ``states`` to ``work/states/<update>.safetensors``, the log
    to ``work/metrics.jsonl``. Batches are numbered like the updates of the schedule, so that two trainings with
    one seed see the same batch at the same update, wherever their spans begin.
    """

    title: str
    model: HeadlabTransformer
    task: HeadlabTask
    optim: OptimConfig
    seed: int
    machine: Machine
    work: Path
    span: Span
    states: set[int] = field(default_factory=set)
    method: Method | None = None
    gate_lr: float = 0.0

    @property
    def schedule(self) -> ScheduleConfig:
        """The learning rate over all updates."""
        optim = self.optim
        return ScheduleConfig(
            schedule=optim.schedule, peak=optim.lr, warmup=optim.warmup, updates=optim.updates, final=optim.final_lr
        )


def fit(job: Job) -> None:
    """Do ``job``, from its last intact checkpoint if there is one, in one process or one per device."""
    if job.machine.devices == 1:
        Training(job).run()
        return
    job.states.add(job.span.stop)
    with tempfile.TemporaryDirectory() as folder:
        # fairseq moves these processes' gradients with torch.distributed, which trusts its peers: one machine only.
        # Plain pickle gives each process weights of its own: torch's way shares their memory and forgets which
        # parameters are gates. The processes are daemons, so that they end with this one.
        arguments = (pickle.dumps(job), f"file://{folder}/meeting")
        torch.multiprocessing.spawn(_process, arguments, job.machine.devices, daemon=True)
    load_weights(job.model, read_tensors(job.work / "states" / f"{job.span.stop}.safetensors"))


def _process(number: int, pickled: bytes, meeting: str) -> None:
    job: Job = pickle.loads(pickled)
    torch.set_num_threads(max(job.machine.threads // job.machine.devices, 1))
    Training(job, Rank(number, meeting)).run()
    torch.distributed.destroy_process_group()


class Training:
    """fairseq's Trainer at work on a :class:`Job`; with ``rank``, as one of several processes."""

    def __init__(self, job: Job, rank: Rank | None = None) -> None:
        self.job, self.optim, self.method = job, job.optim, job.method
        for split in ("train", "valid"):
            job.task.load_dataset(split)
        cfg = fairseq_config(job.task, job.optim, job.schedule, job.gate_lr, job.seed, job.machine)
        if rank is not None:
            join(cfg, rank)
        self.first = rank is None or rank.number == 0
        loss = TranslationLoss(job.task, job.optim.label_smoothing, job.method)
        mark_matrices(job.model)
        self.trainer = Trainer(cfg, job.task, job.model, loss)
        self.trainer._build_optimizer()
        self.checkpoints = Checkpoints(job.work / "checkpoints")
        self.log = _Log(job.work) if self.first else None

    def run(self) -> None:
        """Train to the end of the span."""
        span, optim = self.job.span, self.optim
        metrics.reset()
        epochs = self.trainer.get_train_iterator(epoch=1, load_dataset=False)
        done = self._resume(epochs)
        batches = self._batches(epochs)
        losses: list[float] = []
        tokens, since = 0.0, time.monotonic()
        with Progress(self.job.title, span.stop, done) if self.first else contextlib.nullcontext() as progress:
            while done < span.stop:
                samples = next(batches)
                if self.method is not None:
                    self.method.advance(epochs.epoch, done, (done - span.start) / (span.stop - span.start))
                numbers = self.trainer.train_step(samples)
                if numbers is None:
                    raise RunError(f"update {done + 1} ran out of memory: set optim.batch_tokens lower")
                done += 1
                ended = self._epoch_ended(epochs, done)
                losses.append(float(numbers["loss"]))
                tokens += float(numbers["ntokens"])
                if done % optim.validate_every == 0 or done == span.stop or self._compared(done):
                    numbers["valid_loss"] = self.valid_loss()
                    if self.log is not None and numbers["valid_loss"] < self.log.best_valid_loss():
                        save_state(self.job.model, self.job.work / "checkpoints" / "best.safetensors")
                if self.log is not None and (done % optim.log_every == 0 or "valid_loss" in numbers or ended):
                    rate = tokens / (time.monotonic() - since)
                    line = self._line(done, epochs.epoch, sum(losses) / len(losses), rate, numbers)
                    self.log.write(line)
                    losses, tokens, since = [], 0.0, time.monotonic()
                    if progress is not None:
                        told = ((k, v) for k, v in line.items() if k not in ("update", "epoch") and "/" not in k)
                        progress.at(done, ", ".join(f"{k} {v}" for k, v in told))
                if done in self.job.states and self.first:
                    save_state(self.job.model, self.job.work / "states" / f"{done}.safetensors")
                if done % optim.checkpoint_every == 0 and done < span.stop:
                    self._checkpoint(epochs, done)
        if self.log is not None:
            self.log.close()

    def _epoch_ended(self, epochs: Any, done: int) -> bool:
        """Whether an epoch ended that the method watches; it says whether these weights are to be kept."""
        if self.method is None or not self.method.watches or not epochs.end_of_epoch():
            return False
        itr = self.trainer.get_valid_iterator("valid").next_epoch_itr(shuffle=False, set_dataset_epoch=False)
        batches = (self.trainer._prepare_sample(sample)[0] for sample in itr)
        loss_fn = frozen_loss(self.job.model, self.job.task)
        if self.method.epoch_ended(epochs.epoch, done, batches, loss_fn) and self.first:
            save_state(self.job.model, self.job.work / "states" / f"{done}.safetensors")
        return True

    def _compared(self, done: int) -> bool:
        """Whether the weights after update ``done`` are among those of which the best are averaged."""
        return self.optim.average_rule == "best" and done in self.job.states

    def _batches(self, epochs: Any) -> Iterator[list[dict[str, Any]]]:
        """The batches of one update after the other, epoch after epoch."""
        while True:
            itr = epochs.next_epoch_itr(fix_batches_to_gpus=False, shuffle=True)
            self.trainer.begin_epoch(epochs.epoch)
            yield from iterators.GroupedIterator(itr, self.optim.update_freq)

    def _resume(self, epochs: Any) -> int:
        extra = self.checkpoints.load_into(self.trainer)
        if extra is not None:
            done = int(self.trainer.get_num_updates())
            epochs.load_state_dict(extra["train_iterator"])
            if self.method is not None:
                self.method.load_state_dict(extra["method"])
        else:
            done = self.job.span.start
            epoch, within = divmod(done, -(-len(epochs) // self.optim.update_freq))
            epochs.load_state_dict(
                {
                    "epoch": epoch + 1,
                    "iterations_in_epoch": within * self.optim.update_freq,
                    "shuffle": True,
                    "len": len(epochs),
                }
            )
            self.trainer.set_num_updates(done)
            self.trainer.lr_scheduler.step_update(done)
        if self.log is not None:
            self.log.cut(done)
        return done

    def _checkpoint(self, epochs: Any, done: int) -> None:
        method = self.method.state_dict() if self.method is not None else None
        if self.first:
            self.checkpoints.save(self.trainer, done, {"train_iterator": epochs.state_dict(), "method": method})

    def _line(self, done: int, epoch: int, loss: float, rate: float, numbers: dict[str, Any]) -> dict[str, Any]:
        """What ``metrics.jsonl`` says about an update: losses in nats per target token, since the last line."""
        rate_now = learning_rate(self.job.schedule, done - 1)
        line: dict[str, Any] = {"update": done, "epoch": epoch, "loss": loss, "lr": rate_now}
        if self.method is not None:
            line |= {"method_loss": float(numbers["method_loss"]), **self.method.log()}
        if "valid_loss" in numbers:
            line["valid_loss"] = numbers["valid_loss"]
        line["tokens_per_s"] = round(rate)
        return {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in line.items()}

    def valid_loss(self) -> float:
        """Cross-entropy on the valid set without label smoothing, in nats per target token."""
        itr = self.trainer.get_valid_iterator("valid").next_epoch_itr(shuffle=False, set_dataset_epoch=False)
        sums = torch.zeros(2, dtype=torch.float64)
        with metrics.aggregate(new_root=True):
            for sample in itr:
                sample, is_dummy = self.trainer._prepare_sample(sample)
                with torch.inference_mode():
                    loss, size, _ = self.job.task.valid_step(sample, self.job.model, self.trainer.get_criterion())
                if not is_dummy:
                    sums += torch.tensor([float(loss), float(size)], dtype=torch.float64)
        if self.job.machine.devices > 1:
            sums = sums.to(self.trainer.device)
            torch.distributed.all_reduce(sums)
        return float(sums[0] / sums[1])


class _Log:
    """``metrics.jsonl``, and TensorBoard's files where that is installed.

    With the environment variable WANDB_PROJECT set, and wandb installed, the same numbers go to a run of that project
    with the name of the run directory (WANDB_MODE=offline keeps them here).
    """

    def __init__(self, work: Path) -> None:
        self.path = work / "metrics.jsonl"
        self.board: Callable[..., None] | None = None
        with contextlib.suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(work / "tensorboard")).add_scalar
        self.wandb: Any = None
        if os.environ.get("WANDB_PROJECT"):
            with contextlib.suppress(ImportError):
                import wandb

                self.wandb = wandb.init(dir=str(work), name=work.name)

    def write(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
        if self.board is not None:
            for name in line.keys() - {"update"}:
                self.board(name, line[name], line["update"])
        if self.wandb is not None:
            self.wandb.log({name: line[name] for name in line.keys() - {"update"}}, step=line["update"])

    def close(self) -> None:
        """Finish the run of wandb, if there is one."""
        if self.wandb is not None:
            self.wandb.finish()

    def best_valid_loss(self) -> float:
        """The smallest valid loss so far."""
        return min((line["valid_loss"] for line in self._lines() if "valid_loss" in line), default=math.inf)

    def _lines(self) -> Iterator[dict[str, Any]]:
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []:
            with contextlib.suppress(ValueError):  # torn by a kill
                yield json.loads(line)

    def cut(self, done: int) -> None:
        """Drop lines past update ``done`` (and a torn last one), which a resumed run writes again."""
        kept = [json.dumps(line) for line in self._lines() if line["update"] <= done]
        atomic_write(self.path, "".join(line + "\n" for line in kept))
