"""A folder with a corpus of copied digits, and one finished pruning in it that tests go on from."""

from __future__ import annotations

import random
from pathlib import Path

import pandas as pd
import pytest

from headlab.report.rows import read_rows

from .runner import Done, Headlab

#: 2+2 layers of 4 heads, as narrow as can be; a base of 40 updates, 4 updates of gates a target, 3 of fine-tuning.
SMALL = tuple(
    """
    data=files data.name=digits data.source_lang=xx data.target_lang=yy data.pieces=24
    data.files.train=train data.files.valid=valid data.files.test=test
    model=tiny model.dim=16 model.ffn=32 optim=tiny optim.updates=40 optim.batch_tokens=300 optim.warmup=10
    optim.validate_every=20 optim.checkpoint_every=5 optim.log_every=1 optim.average=2
    prune.selection_updates=4 prune.finetune_updates=3 prune.warmup=2
    score.bootstrap=20 score.speed_sentences=5 score.speed_rounds=1 score.beam=2
    machine.threads=1 machine.device=cpu machine.precision=fp32
    """.split()  # noqa: SIM905 - as on a command line
)


def write_digits(folder: Path, train: int = 300) -> None:
    """Lines of digits to copy."""
    draw = random.Random(1)
    for split, size in (("train", train), ("valid", 20), ("test", 25)):
        lines = [" ".join(draw.choices("0123456789", k=draw.randint(2, 7))) for _ in range(size)]
        for lang in ("xx", "yy"):
            (folder / f"{split}.{lang}").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture(scope="session")
def headlab(tmp_path_factory: pytest.TempPathFactory) -> Headlab:
    folder = tmp_path_factory.mktemp("integration")
    write_digits(folder)
    return Headlab(folder, SMALL)


#: The first run: everything from the corpus to the table.
FIRST = ("prune", "--targets", "3,1", "prune.rivals={random: [1]}")


@pytest.fixture(scope="session")
def pruned(headlab: Headlab) -> Done:
    return headlab(*FIRST)


@pytest.fixture(scope="session")
def first(headlab: Headlab, pruned: Done) -> pd.DataFrame:
    """The rows of the first run, before any other."""
    assert pruned.code == 0, pruned.stderr
    assert "Traceback" not in pruned.stderr
    return read_rows(headlab.folder / "results" / "adhoc" / "digits-tiny")
