"""Before anything is timed: do both programs compute the same thing?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from fairseq.data.data_utils import collate_tokens
from torch import Tensor, nn

from headlab.config import Config, ScoreConfig
from headlab.errors import RunError
from headlab.fairseq_plugin.checkpoints import write_tensors
from headlab.fairseq_plugin.components import TranslationLoss
from headlab.fairseq_plugin.model import build_model, detached_state
from headlab.fairseq_plugin.modelfiles import load_model
from headlab.fairseq_plugin.setup import Corpus, Machine, load_task

from . import stock
from .turns import Turn

#: Largest relative difference of losses and of gradient norms in float32, whose own error is 6e-8 an operation.
LOSS, GRADIENT = 1e-5, 1e-4

#: Two translations are a tie when their scores (log-probability / length ** lenpen) differ by less.
TIE = 1e-4

#: The share of translations that may differ beside ties: a tie within the beam need not be one at its end.
OTHERS = 0.001


def losses(turn: Turn, cfg: Config, machine: Machine, corpus: Corpus, folder: Path, batches: int) -> None:
    """Loss and gradient norm of both programs' models and criteria with the same weights on the same batches.

    In training mode with every dropout at 0, so that label smoothing is in. ``loss`` and ``gradient`` are the
    largest relative differences.
    """
    turn.wait()
    machine = replace(machine, precision="fp32")
    model = replace(cfg.model, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)
    task = load_task(corpus, machine)
    task.load_dataset("train")
    torch.manual_seed(cfg.seed)
    ours = build_model(model, task.source_dictionary, task.target_dictionary).train()
    write_tensors(detached_state(ours), folder / "weights.safetensors")

    arguments = stock.train_arguments(replace(cfg, model=model), corpus.bin, machine.device, folder)
    stock_cfg, stock_task, theirs = stock.built(arguments)
    stock.load(theirs.train(), folder / "weights.safetensors")
    criteria = (
        (ours, TranslationLoss(task, cfg.optim.label_smoothing, None).train()),
        (theirs, stock_task.build_criterion(stock_cfg.criterion).train()),
    )
    itr = task.get_batch_iterator(
        task.dataset("train"), max_tokens=cfg.optim.batch_tokens, max_positions=task.max_positions(), seed=cfg.seed
    ).next_epoch_itr(shuffle=True)
    worst = [0.0, 0.0]
    for _, sample in zip(range(batches), itr, strict=False):
        found = []
        for module, criterion in criteria:
            module.zero_grad()
            loss, size, _ = criterion(module, sample)
            (loss / size).backward()
            found.append((float(loss.detach() / size), _norm(module)))
        for place, (one, other) in enumerate(zip(*found, strict=True)):
            worst[place] = max(worst[place], abs(one - other) / abs(other))
    turn.done(batches, loss=worst[0], gradient=worst[1])
    turn.wait()


def _norm(module: nn.Module) -> float:
    return float(torch.stack([p.grad.norm() for p in module.parameters() if p.grad is not None]).norm())


def check_losses(loss: float, gradient: float) -> str:
    """A line about :func:`losses`; RunError where the programs do not compute the same."""
    line = f"relative difference of loss {loss:.1e}, of gradient norm {gradient:.1e} (fp32, same weights and batches)"
    if not (loss <= LOSS and gradient <= GRADIENT):
        raise RunError(f"the programs do not compute the same: {line}; allowed are {LOSS:.0e} and {GRADIENT:.0e}")
    return line


def scores(
    turn: Turn, folder: Path, cfg: Config, score: ScoreConfig, machine: Machine, sources: list[str],
    pieces: list[list[str]],
) -> None:  # fmt: skip
    """Score translations in ``pieces`` (several of each source) with the model in ``folder``, in float32."""
    turn.wait()
    machine = replace(machine, precision="fp32")
    model, task, cut = load_model(folder, cfg.model, cfg.data.source_lang, cfg.data.target_lang, machine)
    model.eval()
    words, found = task.target_dictionary, []
    for source, candidates in zip(cut.encode(sources), pieces, strict=True):
        tokens = task.source_dictionary.encode_line(source, add_if_not_exist=False).long()[None].to(machine.device)
        targets = [words.encode_line(text, add_if_not_exist=False).long() for text in candidates]
        target = collate_tokens(targets, words.pad()).to(machine.device)
        found.append(_scores(model, tokens, target, words.eos(), words.pad(), score.lenpen))
    turn.done(len(sources), scores=found)
    turn.wait()


@torch.inference_mode()
def _scores(model: nn.Module, source: Tensor, target: Tensor, eos: int, pad: int, lenpen: float) -> list[float]:
    """log P(target | source) / length ** lenpen of each row of ``target`` (candidates, longest), eos at its end."""
    before = torch.cat([torch.full_like(target[:, :1], eos), target[:, :-1]], 1)
    sources = source.expand(len(target), -1)
    lengths = torch.full((len(target),), source.size(1), device=source.device)
    logits, _ = model(sources, lengths, before)
    each = logits.float().log_softmax(-1).gather(2, target[:, :, None]).squeeze(2)
    real = target.ne(pad)
    found: list[float] = ((each * real).sum(1) / real.sum(1) ** lenpen).tolist()
    return found


@dataclass(frozen=True)
class Compared:
    """How the translations of two programs differ: the numbers of sentences of each sort."""

    same: int
    ties: int
    limit: int  # one of the two is as long as a translation may be, and the limit depends on the batch
    others: int

    def __str__(self) -> str:
        total = self.same + self.ties + self.limit + self.others
        parts = [f"{self.same} of {total} translations are the same"]
        parts += [f"{self.ties} are ties"] if self.ties else []
        parts += [f"{self.limit} end at the length limit"] if self.limit else []
        parts += [f"{self.others} differ"] if self.others else []
        return ", ".join(parts)

    def check(self) -> None:
        """RunError where more differ than ties explain."""
        if self.others > OTHERS * (self.same + self.ties + self.limit + self.others):
            raise RunError(f"the programs do not translate alike: {self}")


def differing(ours: Sequence[str], theirs: Sequence[str]) -> list[int]:
    """The numbers of the sentences whose translations, in pieces, are not the same."""
    if len(ours) != len(theirs):
        raise RunError(f"one program translated {len(ours)} sentences, the other {len(theirs)}")
    return [number for number, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]


def compared(
    total: int, lengths: Sequence[int], found: Sequence[tuple[str, str]], scores: Sequence[Sequence[float]]
) -> Compared:
    """Sort the ``found`` pairs of differing translations, of sources of so many pieces (``lengths``)."""
    counts = {"ties": 0, "limit": 0, "others": 0}
    for length, pair, (one, other) in zip(lengths, found, scores, strict=True):
        if any(len(text.split()) >= 2 * length + 10 for text in pair):
            counts["limit"] += 1
        else:
            counts["ties" if abs(one - other) < TIE else "others"] += 1
    return Compared(total - len(found), **counts)
