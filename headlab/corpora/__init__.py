"""Corpora: obtain → clean → split → SentencePiece pieces.

>>> from headlab.corpora import build, cache_dir, identity, show, Pieces
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headlab.corpora.building import build, identity
    from headlab.corpora.package import cache_dir
    from headlab.corpora.pieces import Pieces
    from headlab.corpora.report import show

__all__ = ["Pieces", "build", "cache_dir", "identity", "show"]

_HOME = {"Pieces": "pieces", "build": "building", "cache_dir": "package", "identity": "building", "show": "report"}


def __getattr__(name: str) -> Any:
    """Import on first use: commands that need no corpus start without SentencePiece and rapidfuzz."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
