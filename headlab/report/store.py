"""CSV files with typed columns and a key, which several processes may add to at once."""

from __future__ import annotations

import csv
import fcntl
import io
import math
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from headlab.errors import UserError
from headlab.runs import atomic_write

_LOCK = ".rows.lock"

csv.field_size_limit(2**31 - 1)  # a field may hold many numbers; the module stops at 131072 characters


@dataclass(frozen=True)
class Table:
    """A kind of CSV file: its name, the dataclass of its records and the fields that make up their key."""

    file: str
    record: type
    key: tuple[str, ...]
    sort: Callable[[Mapping[str, str]], Any]
    mend: str  # what a user can do about a missing or damaged file

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns, in the order of the record's fields."""
        return tuple(field.name for field in fields(self.record))

    def write(self, folder: Path, records: Sequence[Any]) -> None:
        """Add ``records`` to the file; one whose key is there already is replaced, all others stay as they are.

        Raises UserError, and leaves the file alone, when it is damaged.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.file
        with _locked(folder):
            lines = self._read(path) if path.exists() else []
            by_key = {self._key(line): line for line in lines}
            for record in records:
                line = {name: _format(value) for name, value in asdict(record).items()}
                by_key[self._key(line)] = line
            out = io.StringIO()
            writer = csv.DictWriter(out, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted(by_key.values(), key=self.sort))
            atomic_write(path, out.getvalue())

    def read(self, folder: Path) -> pd.DataFrame:
        """The file as a frame: text as str (empty where there is none), whole numbers as Int64, others as float64.

        Raises UserError when it is missing, has no rows or is damaged.
        """
        path = folder / self.file
        lines = self._read(path)
        if not lines:
            raise UserError(f"{path}: there are no rows in it: {self.mend}")
        kinds = typing.get_type_hints(self.record)
        return pd.DataFrame({name: self._column(path, lines, name, kinds[name]) for name in self.columns})

    def keys(self, folder: Path) -> set[tuple[str, ...]]:
        """The keys of all records as they are written; none where there is no such file.

        Raises UserError when it is damaged.
        """
        path = folder / self.file
        return {self._key(line) for line in self._read(path)} if path.exists() else set()

    def _key(self, line: dict[str, str]) -> tuple[str, ...]:
        return tuple(line[name] for name in self.key)

    def _read(self, path: Path) -> list[dict[str, str]]:
        try:
            reader = csv.reader(io.StringIO(path.read_bytes().decode("utf-8"), newline=""), strict=True)
            lines = list(reader)
        except FileNotFoundError:
            raise UserError(f"{path}: no such file: {self.mend}") from None
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{path}: cannot be read ({error}): {self.mend}") from error
        if not lines:
            raise UserError(f"{path}: the file is empty: {self.mend}")
        if tuple(lines[0]) != self.columns:
            odd = set(lines[0]).symmetric_difference(self.columns)
            what = f"missing or unknown: {', '.join(sorted(odd))}" if odd else "out of order"
            raise UserError(f"{path}: line 1 has not the expected columns ({what}): {self.mend}")
        for number, values in enumerate(lines[1:], start=2):
            if len(values) != len(self.columns):
                raise UserError(f"{path}: row {number} has {len(values)} of {len(self.columns)} columns: {self.mend}")
        return [dict(zip(self.columns, values, strict=True)) for values in lines[1:]]

    def _column(self, path: Path, lines: list[dict[str, str]], name: str, kind: Any) -> pd.Series:
        texts = [line[name] for line in lines]
        if str in (kind, *typing.get_args(kind)):
            return pd.Series(texts, dtype="str")
        number, dtype = (int, "Int64") if int in (kind, *typing.get_args(kind)) else (float, "float64")
        values = []
        for row, text in enumerate(texts, start=2):
            try:
                values.append(number(text) if text else None)
            except ValueError:
                raise UserError(f"{path}: row {row}: {name} is '{text}', not a number: {self.mend}") from None
        return pd.Series(values, dtype=dtype)


def natural(text: str) -> list[tuple[float, str]]:
    """A sort key that puts ``u600`` before ``u1200`` and ``=0.005`` before ``=0.01``."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(float(part), "") if place % 2 else (-1, part) for place, part in enumerate(parts)]


def _format(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / _LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also by a killed process
        yield
