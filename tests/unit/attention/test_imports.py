"""Who may import whom: attention and methods are pure torch, reports and scores need neither torch nor fairseq."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headlab

PACKAGE = Path(headlab.__file__).parent
HYDRA_AND_FAIRSEQ = {"hydra", "omegaconf", "fairseq", "fairseq_cli"}


def imports(folder: str) -> set[str]:
    """Every module that a file of ``folder`` names in an import, also inside functions."""
    found: set[str] = set()
    files = list((PACKAGE / folder).glob("*.py"))
    assert files
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_attention_imports_nothing_of_headlab_but_itself():
    modules = imports("attention")
    assert {m.partition(".")[0] for m in modules} & HYDRA_AND_FAIRSEQ == set()
    assert {m for m in modules if m.startswith("headlab") and not m.startswith("headlab.attention")} == set()


def test_methods_know_attention_alone():
    modules = imports("methods")
    assert {m.partition(".")[0] for m in modules} & HYDRA_AND_FAIRSEQ == set()
    foreign = {".".join(m.split(".")[:2]) for m in modules if m.startswith("headlab.")}
    assert foreign <= {"headlab.attention", "headlab.methods", "headlab.config", "headlab.errors"}


def test_only_the_plugin_imports_fairseq():
    for path in PACKAGE.rglob("*.py"):
        if "fairseq_plugin" not in path.parts:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert not [n for n in names if n.partition(".")[0] in ("fairseq", "fairseq_cli")], path


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("headlab.report headlab.report.rows headlab.report.tables headlab.report.figures", "torch fairseq"),
        ("headlab.scoring.size headlab.scoring.text headlab.scoring.speed", "fairseq"),
        ("headlab.attention.heads", "torch fairseq omegaconf hydra"),
        ("headlab.attention.layer headlab.attention.removal headlab.methods.l0", "fairseq hydra"),
    ],
)
def test_what_a_module_loads(modules, absent):
    code = (
        "import importlib, sys\n"
        f"for name in {modules.split()}: importlib.import_module(name)\n"
        f"sys.exit(' '.join(m for m in {absent.split()} if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
