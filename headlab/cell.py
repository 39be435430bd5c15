"""Whether this process is a cell of a sweep: the environment names the folder that it reports to.

A cell tells there how far it is, leaves there which rows it wrote, waits for runs that another cell is making, and
leaves tables and figures to the sweep.
"""

from __future__ import annotations

import os
from pathlib import Path

#: The environment variable; processes that a cell starts have it too.
VARIABLE = "HEADLAB_CELL"


def folder() -> Path | None:
    """The folder of the cell that this process is, or None."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None
