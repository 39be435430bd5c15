"""The real corpus at toy size: needs the corpus in the cache, or the network."""

from __future__ import annotations

import pytest

from headlab.report.rows import read_rows

from .test_copy import command

pytestmark = pytest.mark.system


def test_the_smoke_experiment_leaves_its_table(tmp_path):
    done = command(tmp_path, "prune", "experiment=smoke", "machine.threads=1")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "results" / "smoke"
    rows = read_rows(folder)
    kept = {(row.method, row.target): row.heads_kept for _, row in rows.iterrows() if row.method != "none"}
    assert kept == {("l0", 4): 4, ("l0", 2): 2, ("random", 2): 2}
    assert {"table.md", "table.tex", "bleu_vs_heads.png", "heads.png", "manifest.json"} <= {
        path.name for path in folder.iterdir()
    }
    (data,) = (tmp_path / "runs" / "data").glob("*")
    for split, size in (("valid", 100), ("test", 200)):
        for lang in ("en", "ru"):
            assert len((data / f"{split}.{lang}").read_text(encoding="utf-8").splitlines()) == size
    assert (rows.bleu < 100).all()
    again = command(tmp_path, "prune", "experiment=smoke", "machine.threads=1")
    assert again.returncode == 0
    assert "starting" not in again.stderr
