"""Small models, and a binarised corpus of copied digits."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary

from headlab import corpora
from headlab.attention.heads import Layout
from headlab.config import DataConfig, FilesConfig, ModelConfig, OptimConfig
from headlab.fairseq_plugin.binarize import binarize
from headlab.fairseq_plugin.components import HeadlabTask
from headlab.fairseq_plugin.model import HeadlabTransformer, build_model
from headlab.fairseq_plugin.setup import Corpus, Machine, load_task

MACHINE = Machine("cpu", "fp32", 1)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def shape_of(**changes: Any) -> ModelConfig:
    """2+3 layers of 4 heads, so that a mix-up of encoder and decoder layers shows; no dropout."""
    values: dict[str, Any] = {
        "name": "test", "encoder_layers": 2, "decoder_layers": 3, "heads": 4, "dim": 32, "ffn": 40,
        "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
    }  # fmt: skip
    return ModelConfig(**{**values, **changes})


def dictionary(words: int) -> Dictionary:
    """A dictionary of ``words`` words and fairseq's four special ones."""
    made = Dictionary()
    for number in range(words):
        made.add_symbol(f"w{number}")
    return made


def random_model(layout: Layout | None = None, seed: int = 1, **changes: Any) -> HeadlabTransformer:
    """A model in evaluation mode whose every parameter is random, biases and layer norms too."""
    torch.manual_seed(seed)
    model = build_model(shape_of(**changes), dictionary(20), dictionary(30), layout)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.mul_(1.5)
    return model.eval()


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus folder: 220 lines of digits to copy, in pieces and binarised."""
    folder = tmp_path_factory.mktemp("digits")
    draw = random.Random(1)
    for split, size in (("train", 160), ("valid", 30), ("test", 30)):
        lines = [" ".join(draw.choices("0123456789", k=draw.randint(2, 9))) for _ in range(size)]
        for lang in ("xx", "yy"):
            (folder / f"own-{split}.{lang}").write_text("".join(f"{line}\n" for line in lines))
    files = FilesConfig(*(str(folder / f"own-{split}") for split in ("train", "valid", "test")))
    cfg = DataConfig(name="digits", source="files", source_lang="xx", target_lang="yy", files=files, pieces=24)
    corpora.build(cfg, folder, folder)
    binarize(folder, "xx", "yy")
    return folder


@pytest.fixture
def corpus(digits: Path) -> Corpus:
    return Corpus(digits / "bin", "xx", "yy")


@pytest.fixture
def task(corpus: Corpus) -> HeadlabTask:
    return load_task(corpus, MACHINE)


@pytest.fixture
def new_model(task: HeadlabTask) -> Callable[..., HeadlabTransformer]:
    """A freshly initialised model over the digits; the same one for the same seed."""

    def build(layout: Layout | None = None, seed: int = 1, **changes: Any) -> HeadlabTransformer:
        torch.manual_seed(seed)
        shape = shape_of(**{"decoder_layers": 2, "dropout": 0.1, "attention_dropout": 0.1, **changes})
        return build_model(shape, task.source_dictionary, task.target_dictionary, layout)

    return build


@pytest.fixture
def optim() -> OptimConfig:
    return OptimConfig(
        name="test", updates=12, batch_tokens=200, lr=0.01, warmup=4, validate_every=5, checkpoint_every=4, log_every=1
    )
