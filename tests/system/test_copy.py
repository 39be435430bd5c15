"""A model that has to work: it copies digits, with all its heads and with a quarter of them."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

import headlab
from headlab.report.rows import read_rows

pytestmark = pytest.mark.system
REPOSITORY = Path(headlab.__file__).parents[1]


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from headlab.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, str(REPOSITORY), *arguments], cwd=folder, capture_output=True, text=True
    )


def write_digits(folder: Path, seed: int) -> None:
    draw = random.Random(seed)
    for split, size in (("train", 6000), ("valid", 100), ("test", 200)):
        lines = [" ".join(draw.choices("0123456789", k=draw.randint(3, 10))) for _ in range(size)]
        for lang in ("xx", "yy"):
            (folder / f"{split}.{lang}").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("method", ["l0", "gha"])
def test_copying_reaches_98_bleu_and_keeps_it_at_a_quarter_of_the_heads(tmp_path, method):
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    write_digits(tmp_path, seed)
    done = command(
        tmp_path, "prune", f"method={method}", "data=files", "data.name=digits",
        "data.source_lang=xx", "data.target_lang=yy",
        "data.files.train=train", "data.files.valid=valid", "data.files.test=test", "data.pieces=24",
        "model=tiny", "model.dropout=0.0", "model.attention_dropout=0.0", "model.activation_dropout=0.0",
        "optim=tiny", "optim.updates=800", "optim.batch_tokens=1500", "optim.warmup=200", "optim.lr=3e-3",
        "optim.average=3", "optim.average_every=10", "prune.scope=[enc-self,dec-self,enc-dec]",
        "prune.target=6", "prune.selection_updates=250", "prune.finetune_updates=200",
        "prune.controls=[]", "prune.lr=1e-3",
        f"seed={seed}", "machine.threads=1", "machine.precision=fp32", "machine.device=cpu",
        "score.speed_sentences=20", "score.speed_rounds=1", "score.bootstrap=100",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = read_rows(tmp_path / "results" / "adhoc" / "digits-tiny")
    base, quarter = rows[rows.variant == "base"].iloc[0], rows[(rows.method == method) & (rows.target == 6)].iloc[0]
    assert (base.heads_kept, quarter.heads_kept) == (24, 6)
    assert base.bleu >= 98, (seed, base.bleu)
    assert quarter.bleu >= 98, (seed, quarter.bleu)
    (folder,) = (tmp_path / "runs" / "pruned").glob("*")
    found = subprocess.run(
        [sys.executable, "-m", "headlab.cli", "translate", str(folder)], input="3 1 4 1 5\n\n2 7 1 8\n", text=True,
        capture_output=True, cwd=tmp_path, env={"PYTHONPATH": str(REPOSITORY), "PATH": ""},
    )  # fmt: skip
    assert found.stdout.splitlines() == ["3 1 4 1 5", "", "2 7 1 8"], (seed, found.stderr)
