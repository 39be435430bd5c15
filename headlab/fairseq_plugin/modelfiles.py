"""A model as files: weights, heads and vocabulary in one folder from which it loads again, nothing unpickled."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch import Tensor

from headlab.attention.heads import Layout
from headlab.config import ModelConfig
from headlab.corpora import Pieces
from headlab.errors import UserError
from headlab.fairseq_plugin.checkpoints import read_tensors, write_tensors
from headlab.fairseq_plugin.components import HeadlabTask
from headlab.fairseq_plugin.model import HeadlabTransformer, build_model, load_weights
from headlab.fairseq_plugin.setup import Corpus, Machine, load_task
from headlab.runs import read_json, write_json


def save_model(model: HeadlabTransformer, weights: dict[str, Tensor], corpus: Corpus, folder: Path) -> None:
    """Write ``model.safetensors`` (each tensor once), ``heads.json`` (layout, tied tensors) and the vocabulary."""
    write_tensors(weights, folder / "model.safetensors")
    first: dict[int, str] = {}
    tied = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            tied.append([first[id(parameter)], name])
        first.setdefault(id(parameter), name)
    write_json(folder / "heads.json", {**model.layout().to_json(), "tied": tied})
    vocabulary = folder / "vocabulary"
    vocabulary.mkdir(exist_ok=True)
    for lang in (corpus.source_lang, corpus.target_lang):
        shutil.copyfile(corpus.bin / f"dict.{lang}.txt", vocabulary / f"dict.{lang}.txt")
    shutil.copyfile(corpus.bin.parent / "pieces.model", vocabulary / "pieces.model")


def read_layout(folder: Path) -> Layout:
    """The heads of a saved model; UserError where ``heads.json`` is missing or damaged."""
    try:
        return Layout.from_json(read_json(folder / "heads.json"))
    except ValueError as error:
        raise UserError(f"{folder / 'heads.json'}: {error}; the run directory is damaged") from None


def vocabulary(folder: Path, source_lang: str, target_lang: str) -> Corpus:
    """The vocabulary beside a saved model, in the form in which a corpus names its own."""
    for name in (f"dict.{source_lang}.txt", f"dict.{target_lang}.txt", "pieces.model"):
        if not (folder / "vocabulary" / name).is_file():
            raise UserError(f"{folder / 'vocabulary' / name}: missing; the run directory is damaged")
    return Corpus(folder / "vocabulary", source_lang, target_lang)


def saved_model(folder: Path, shape: ModelConfig, task: HeadlabTask) -> HeadlabTransformer:
    """The model in ``folder`` over the dictionaries of ``task``; UserError names the file that does not fit."""
    try:
        model = build_model(shape, task.source_dictionary, task.target_dictionary, read_layout(folder))
    except ValueError as error:
        raise UserError(f"{folder / 'heads.json'}: {error}; it does not fit the model of config.yaml") from None
    try:
        load_weights(model, read_tensors(folder / "model.safetensors"))
    except ValueError as error:
        raise UserError(
            f"{folder / 'model.safetensors'}: {error}; it does not fit heads.json and config.yaml"
        ) from None
    return model


def load_model(
    folder: Path, shape: ModelConfig, source_lang: str, target_lang: str, machine: Machine
) -> tuple[HeadlabTransformer, HeadlabTask, Pieces]:
    """The model in ``folder``, on the machine's device, with its vocabulary."""
    task = load_task(vocabulary(folder, source_lang, target_lang), machine)
    model = saved_model(folder, shape, task)
    return model.to(torch.device(machine.device)), task, Pieces(folder / "vocabulary" / "pieces.model")
