"""Tables and figures from the CSV files of a results folder; nothing is trained or translated here."""

from __future__ import annotations

from pathlib import Path


def make_report(folder: Path) -> list[Path]:
    """Write the tables and figures of ``folder`` from its CSV files alone; return what was written.

    Raises UserError when rows.csv is missing, empty or damaged.
    """
    # Here and not above: every cell of a sweep imports report.rows, and matplotlib takes a while.
    from headlab.report.figures import write_figures
    from headlab.report.orders import write_agreements
    from headlab.report.tables import write_tables

    agreements = write_agreements(folder)
    return [*write_tables(folder), *([] if agreements is None else [agreements]), *write_figures(folder)]
