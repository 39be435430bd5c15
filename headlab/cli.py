"""The verbs: flags become overrides, errors become exit codes. What a verb needs is loaded when it runs."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from headlab import __version__
from headlab.errors import RunError, UserError
from headlab.help import OVERVIEW, VERBS

if TYPE_CHECKING:
    from headlab.config import Config
    from headlab.sweep.cells import Cell

#: Short flags and the keys that they stand for. Beside these, ``--a.b value`` is ``a.b=value`` for every key.
FLAGS = {
    "target": "prune.target",
    "targets": "prune.targets",
    "scope": "prune.scope",
    "controls": "prune.controls",
    "penalty": "method.l0.penalty",
    "beam": "score.beam",
    "device": "machine.device",
    "precision": "machine.precision",
    "threads": "machine.threads",
    "devices": "machine.devices",
    "jobs": "machine.jobs",
}

#: Verbs with one argument, and its name.
ARGUMENTS = {"evaluate": "RUN", "translate": "RUN", "report": "EXPERIMENT"}

#: Flags of a command with lists of values, and the verbs that may have them.
MULTIRUN, DRY_RUN = ("-m", "--multirun"), "--dry-run"
SWEPT = ("train", "prune", "sweep")

#: Failures of the machine, which are no bugs: full or read-only disk, no permission, too many files, broken device.
ENVIRONMENT = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE, errno.EIO}


class Stopped(SystemExit):
    """A signal that ends the program; ``code`` is 128 plus its number."""


def main(argv: list[str] | None = None, run: Callable[[list[str]], int] | None = None) -> int:
    """Run the command line ``argv`` (default: that of the process) and return its exit code.

    With ``run``, do that with it instead: errors and signals end it as they end a verb.
    """
    arguments = sys.argv[1:] if argv is None else argv
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in previous.items():
        if handler is not signal.SIG_IGN:  # a shell's background job ignores Ctrl-C on purpose
            signal.signal(number, _stop)
    try:
        return (run or _run)(arguments)
    except UserError as error:
        return _fail(2, *error.problems)
    except RunError as error:
        return _fail(1, str(error))
    except Stopped as stop:
        again = f"to go on, run the same command again: headlab {shlex.join(arguments)}"
        return _fail(int(str(stop.code)), f"stopped; finished work and the last checkpoint are kept; {again}")
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "fairseq":
            return _bug()
        return _fail(1, "fairseq is not installed; run `make setup` in a checkout, with Python 3.11 or 3.12")
    except OSError as error:
        if error.errno not in ENVIRONMENT:
            return _bug()
        return _fail(1, f"{error.filename or 'writing'}: {error.strerror}")
    except Exception:
        return _bug()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise Stopped(128 + number)


def _fail(code: int, *lines: str) -> int:
    for line in lines:
        print(f"headlab: {' '.join(line.split())}", file=sys.stderr)
    return code


def _bug() -> int:
    traceback.print_exc()
    return _fail(1, "this is a bug in headlab; please report it with the lines above")


def _run(arguments: list[str]) -> int:
    if not arguments:
        print(OVERVIEW, end="", file=sys.stderr)
        return 2
    if "--version" in arguments:
        print(f"headlab {__version__}")
        return 0
    if "--help" in arguments or "-h" in arguments:
        print(VERBS.get(next((a for a in arguments if a in VERBS), ""), OVERVIEW), end="")
        return 0
    multirun = [word for word in arguments if word in (*MULTIRUN, DRY_RUN)]
    words, overrides, typed = _parse([word for word in arguments if word not in multirun])
    verb = words.pop(0) if words else ""
    if verb not in VERBS:
        raise UserError(_unknown_verb(verb))
    wanted = 1 if verb in ARGUMENTS else 0
    problems = [f"{word}: {verb} takes no such argument; did you mean a key=value?" for word in words[wanted:]]
    lists = verb == "sweep" or (verb in SWEPT and any(word in MULTIRUN for word in multirun))
    if verb not in SWEPT:
        problems += [f"{word}: {verb} is no sweep; train, prune and sweep may have it" for word in multirun]
    elif DRY_RUN in multirun and not lists:
        problems.append(f"{DRY_RUN}: shows the plan of a sweep; write headlab {verb} -m {DRY_RUN}")
    if len(words) < wanted:
        raise UserError(f"{verb}: needs {ARGUMENTS[verb]}; see headlab {verb} --help", *problems)
    try:
        what = _cells(verb, overrides) if lists else _configuration(verb, words, overrides)
    except UserError as error:
        lines = [_as_typed(line, typed) for line in error.problems]
        raise UserError(*problems, *lines) from None
    if problems:
        raise UserError(*problems)
    if isinstance(what, list):
        from headlab.sweep import sweep

        sweep(what, DRY_RUN in multirun)
    else:
        _start(verb, words, what)
    return 0


def _parse(arguments: list[str]) -> tuple[list[str], list[str], dict[str, str]]:
    """Split a command line into words (the verb, its argument), overrides ``key=value``, and flags by key."""
    from headlab.compose import keys

    schema = keys()
    words: list[str] = []
    overrides: list[str] = []
    typed: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        token = rest.pop(0)
        if not token.startswith("-"):
            (overrides if re.match(r"[+~]*[\w.-]+=", token) else words).append(token)
            continue
        flag, equals, text = token.partition("=")
        value: str | None = text
        name = flag.lstrip("-").replace("-", "_")
        key = FLAGS.get(name, name)
        if schema.get(key) is bool and not equals and rest[:1] not in (["true"], ["false"]):
            value = "true"
        elif not equals and rest and not rest[0].startswith("--"):
            value = rest.pop(0)
        elif not equals:
            value = None
        typed[key] = flag
        overrides.append(key if value is None else f"{key}={value}")
    return words, overrides, typed


def _as_typed(line: str, typed: dict[str, str]) -> str:
    """An error about an unknown key, told about the flag that was typed."""
    key, colon, rest = line.partition(": no such key")
    return f"{typed[key]}: no such flag{rest}" if colon and key in typed else line


def _unknown_verb(verb: str) -> str:
    from headlab.compose import nearest

    return (
        f"{verb}: no such verb; did you mean {nearest(verb, VERBS)}?" if verb else f"no verb; one of {', '.join(VERBS)}"
    )


def _configuration(verb: str, words: list[str], overrides: list[str]) -> Config:
    from headlab.compose import compose, compose_for_run

    if ARGUMENTS.get(verb) == "RUN":
        return compose_for_run(Path(words[0]), overrides, verb)
    return compose(overrides, verb)


def _cells(verb: str, overrides: list[str]) -> list[Cell]:
    from headlab.sweep.cells import cells_of

    return cells_of("train" if verb == "train" else "prune", overrides)


def _start(verb: str, words: list[str], cfg: Config) -> None:
    """Call the function behind a verb."""
    if verb == "validate":
        from headlab.compose import to_yaml

        print(to_yaml(cfg), end="")
    elif verb == "report":
        _report(words[0], cfg)
    else:
        from headlab import pipeline

        if verb == "evaluate":
            pipeline.evaluate(Path(words[0]), cfg)
        elif verb == "translate":
            for line in pipeline.translate(Path(words[0]), _input_lines(), cfg):
                sys.stdout.buffer.write(f"{line}\n".encode())
            sys.stdout.flush()
        else:
            {"data": pipeline.data, "train": pipeline.train, "prune": pipeline.prune}[verb](cfg)


def _input_lines() -> list[str]:
    """The lines of standard input; only line feeds end a line, so that one sentence stays one line."""
    lines = sys.stdin.buffer.read().split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    for number, line in enumerate(lines, start=1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise UserError(f"standard input, line {number}: is not UTF-8 ({error.reason})") from None
    return [line.decode().rstrip("\r") for line in lines]


def _report(name: str, cfg: Config) -> None:
    results = Path(cfg.results_dir)
    if not (results / name / "rows.csv").is_file():
        known = sorted(path.parent.name for path in results.glob("*/rows.csv"))
        raise UserError(
            f"{results / name}: there is no rows.csv; recorded experiments: {', '.join(known) or 'none yet'}"
        )
    from headlab.report import make_report

    for path in make_report(results / name):
        print(path)


if __name__ == "__main__":
    sys.exit(main())
