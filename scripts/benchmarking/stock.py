"""Stock fairseq: its own command lines, told only the shape, the corpus and the optimiser's settings.

Every option that is not named here has fairseq's default. Nothing of headlab is loaded into these processes but its
configuration classes, so that memory is fairseq's own.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

# first: it sets up logging before any other part of fairseq is imported
from fairseq_cli import train as fairseq_train  # isort: skip
import hydra.version
import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.translation import TranslationTask
from fairseq_cli import generate as fairseq_generate
from omegaconf import OmegaConf
from safetensors.torch import load_file
from torch import nn

from headlab.config import Config, ModelConfig, OptimConfig, ScoreConfig
from headlab.errors import UserError

from .turns import Turn
from .windows import stop_between_windows


def train_arguments(cfg: Config, corpus: Path, device: str, folder: Path) -> list[str]:
    """The command line of ``fairseq-train`` for the shape, batches and optimiser of ``cfg``.

    ``corpus`` is the binarised corpus. Checkpoints and validation are off on both sides of the comparison. Batches
    need no multiple of 8 sentences, because headlab's do not and they have to be the same ones.
    """
    optim = cfg.optim
    return [
        str(corpus), *_languages(cfg), *_shape(cfg.model), *_schedule(optim),
        "--optimizer", "adam", "--adam-betas", f"({optim.beta1}, {optim.beta2})", "--adam-eps", str(optim.eps),
        "--weight-decay", str(optim.weight_decay), "--clip-norm", str(optim.clip_norm),
        "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", str(optim.label_smoothing),
        "--max-tokens", str(optim.batch_tokens), "--update-freq", str(optim.update_freq),
        "--required-batch-size-multiple", "1", "--seed", str(cfg.seed), *(["--cpu"] if device == "cpu" else []),
        "--no-save", "--disable-validation", "--save-dir", str(folder),
    ]  # fmt: skip


def generate_arguments(cfg: Config, corpus: Path, device: str, score: ScoreConfig) -> list[str]:
    """The command line of ``fairseq-generate`` for the test set, without its ``--path``.

    The length limit is headlab's, which is shorter than the default of 200 pieces and so no slower. Batches need no
    multiple of 8 sentences, because fairseq leaves out the sentences that are over.
    """
    return [
        str(corpus), *_languages(cfg), "--gen-subset", "test", "--beam", str(score.beam),
        "--lenpen", str(score.lenpen), "--max-len-a", "2", "--max-len-b", "10",
        "--required-batch-size-multiple", "1", *(["--cpu"] if device == "cpu" else []),
    ]  # fmt: skip


def _languages(cfg: Config) -> list[str]:
    return ["--task", "translation", "--source-lang", cfg.data.source_lang, "--target-lang", cfg.data.target_lang]


def _shape(model: ModelConfig) -> list[str]:
    found = ["--arch", "transformer", "--share-decoder-input-output-embed"]
    for half, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        found += [f"--{half}-layers", str(layers), f"--{half}-attention-heads", str(model.heads)]
        found += [f"--{half}-embed-dim", str(model.dim), f"--{half}-ffn-embed-dim", str(model.ffn)]
        found += [f"--{half}-normalize-before"] if model.norm == "pre" else []
    found += ["--share-all-embeddings"] if model.share_all_embeddings else []
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        found += [f"--{name.replace('_', '-')}", str(getattr(model, name))]
    return found


def _schedule(optim: OptimConfig) -> list[str]:
    found = ["--lr", str(optim.lr), "--warmup-updates", str(optim.warmup)]
    if optim.schedule == "inverse_sqrt":
        return [*found, "--lr-scheduler", "inverse_sqrt"]
    if optim.schedule == "linear":
        last = ["--total-num-update", str(optim.updates), "--end-learning-rate", str(optim.lr * optim.final_lr)]
        return [*found, "--lr-scheduler", "polynomial_decay", *last]
    raise UserError(f"optim.schedule={optim.schedule}: is compared with fairseq for inverse_sqrt and linear only")


def configuration(arguments: list[str]) -> Any:
    """fairseq's configuration for a command line of ``fairseq-train``."""
    hydra.version.setbase("1.1")  # fairseq calls what later versions have renamed
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), arguments))


def built(arguments: list[str]) -> tuple[Any, Any, nn.Module]:
    """fairseq's configuration, task and freshly initialised model for a command line of ``fairseq-train``."""
    cfg = configuration(arguments)
    task = tasks.setup_task(cfg.task)
    return cfg, task, task.build_model(cfg.model)


def load(model: nn.Module, weights: Path) -> None:
    """Copy headlab's ``model.safetensors`` into a stock model: names and shapes are the same ones."""
    tensors = load_file(weights)
    own = dict(model.named_parameters())
    if own.keys() != tensors.keys():
        raise UserError(f"{weights}: is not a model of this shape ({min(own.keys() ^ tensors.keys())})")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])


def train(turn: Turn, arguments: list[str], threads: int, updates: int) -> None:
    """``fairseq-train``, in windows of ``updates`` updates; the unit is a target token."""
    torch.set_num_threads(threads)
    stop_between_windows(turn, updates)
    sys.argv = ["fairseq-train", *arguments]
    fairseq_train.cli_main()


def generate(turn: Turn, arguments: list[str], shape: list[str], weights: Path, threads: int) -> None:
    """``fairseq-generate`` of the test set with headlab's weights, again and again; the unit is a sentence.

    ``shape`` is the command line that the checkpoint would have been trained with. Time counts from when model and
    data are loaded. ``pieces`` are the best translations, in the order of the test set.
    """
    torch.set_num_threads(threads)
    build_generator = TranslationTask.build_generator

    def started(*rest: Any, **named: Any) -> Any:
        turn.start()
        return build_generator(*rest, **named)

    TranslationTask.build_generator = started
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint.pt"
        _save(shape, weights, checkpoint)
        sys.argv = ["fairseq-generate", *arguments, "--path", str(checkpoint)]
        while True:
            turn.wait()
            said = io.StringIO()
            # torch loads nothing but tensors by default since 2.6; this plain type is in every checkpoint of fairseq
            with redirect_stdout(said), torch.serialization.safe_globals([argparse.Namespace]):
                fairseq_generate.cli_main()
            pieces = _hypotheses(said.getvalue())
            turn.done(len(pieces), pieces=pieces)


def _save(shape: list[str], weights: Path, path: Path) -> None:
    """A checkpoint as ``fairseq-train`` writes it."""
    cfg, _, model = built(shape)
    load(model, weights)
    history = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}
    state = {
        "args": None,
        "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True),
        "model": model.state_dict(),
        "optimizer_history": [history],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
    }
    torch.save(state, path)


def _hypotheses(said: str) -> list[str]:
    """The pieces of each sentence's best translation, from the lines ``H-number<tab>score<tab>pieces``."""
    found = {}
    for line in said.splitlines():
        if line.startswith("H-"):
            number, _, text = line.split("\t")
            found[int(number[2:])] = text
    return [found[number] for number in sorted(found)]
