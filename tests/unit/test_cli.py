from __future__ import annotations

import errno
import io
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest

import headlab as package
from headlab import cli
from headlab.compose import compose, groups, keys, load_config, save_config
from headlab.config import Config
from headlab.errors import RunError, UserError
from headlab.help import OVERVIEW, VERBS

Run = Callable[..., subprocess.CompletedProcess[str]]

#: A headlab process whose training says "on" and then takes a minute.
LONG = """
import sys, time, types
import headlab
from headlab.cli import main
pipeline = types.ModuleType("headlab.pipeline")
pipeline.data = pipeline.prune = None
pipeline.train = lambda cfg: (print("on", flush=True), time.sleep(60))
headlab.pipeline = sys.modules["headlab.pipeline"] = pipeline
sys.exit(main(["train", "--variant", "a b"]))
"""


class Calls(types.ModuleType):
    """Stands for headlab.pipeline: records what the command line asks for."""

    def __init__(self) -> None:
        super().__init__("headlab.pipeline")
        self.made: list[tuple[object, ...]] = []
        self.failure: BaseException | None = None

    def _record(self, *call: object) -> None:
        self.made.append(call)
        if self.failure:
            raise self.failure

    def data(self, cfg: Config) -> None:
        self._record("data", cfg)

    def train(self, cfg: Config) -> None:
        self._record("train", cfg)

    def prune(self, cfg: Config) -> None:
        self._record("prune", cfg)

    def evaluate(self, run: Path, cfg: Config) -> None:
        self._record("evaluate", run, cfg)

    def translate(self, run: Path, lines: list[str], cfg: Config) -> list[str]:
        self._record("translate", run, lines, cfg)
        return [line.upper() for line in lines]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    module = Calls()
    monkeypatch.setitem(sys.modules, "headlab.pipeline", module)
    monkeypatch.setattr(package, "pipeline", module, raising=False)
    return module


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "a run"
    save_config(compose(["model=tiny"], "train"), folder / "config.yaml")
    (folder / "DONE").touch()
    return folder


@pytest.mark.parametrize(
    ("flags", "overrides"),
    [
        (["--target", "10"], ["prune.target=10"]),
        (["--target=0"], ["prune.target=0"]),
        (["--targets", "32,16"], ["prune.targets=[32,16]"]),
        (["--penalty", "0.01"], ["method.l0.penalty=0.01"]),
        (["--target", "1", "--method", "random"], ["prune.target=1", "method=random"]),
        (["--experiment", "smoke", "--seed", "3"], ["experiment=smoke", "seed=3"]),
        (["seed=3", "--target", "4", "model=tiny"], ["model=tiny", "prune.target=4", "seed=3"]),
        (["--target", "5", "--keep-checkpoints", "seed=2"], ["prune.target=5", "keep_checkpoints=true", "seed=2"]),
        (["--target", "5", "--keep-checkpoints", "false"], ["prune.target=5", "keep_checkpoints=false"]),
        (["--target", "5", "--optim.lr=0.1"], ["prune.target=5", "optim.lr=0.1"]),
        (["--target", "5", "--score.lenpen", "-1"], ["prune.target=5", "score.lenpen=-1"]),
        (["--target", "5", "--scope", "enc-self,enc-dec"], ["prune.target=5", "prune.scope=[enc-self,enc-dec]"]),
        (["--target", "5", "--controls", "scratch"], ["prune.target=5", "prune.controls=[scratch]"]),
        (["--target", "5", "--runs-dir", "/x y"], ["prune.target=5", "runs_dir=/x y"]),
    ],
)
def test_flags_are_overrides(calls: Calls, flags: list[str], overrides: list[str]) -> None:
    assert cli.main(["prune", *flags]) == 0
    assert cli.main([*flags, "prune"]) == 0  # the verb may stand anywhere
    assert calls.made == [("prune", compose(overrides))] * 2


def test_a_base_whose_path_has_spaces(calls: Calls, run: Path) -> None:
    assert cli.main(["prune", "--target", "3", "--base", str(run)]) == 0
    ((_, cfg),) = calls.made
    assert isinstance(cfg, Config)
    assert (cfg.base, cfg.model.name) == (str(run), "tiny")


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["prune", "--target", "ten"], ["prune.target=ten: expected a whole number; several go into prune.targets"]),
        (["prune", "--target", "49"], ["prune.target=49: has to be from 0 to 48, the number of heads within enc-self"]),
        (["prune", "--target", "-1"], ["prune.target=-1: has to be from 0 to 48, the number of heads within enc-self"]),
        (["prune", "--target"], ["prune.target: needs a value, as in prune.target=VALUE"]),
        (["prune", "--targt", "10"], ["--targt: no such flag; did you mean prune.target?"]),
        (["train", "-x"], ["-x: no such flag; did you mean .*"]),
        (["evaluate", "r", "-m"], ["-m: evaluate is no sweep; .*", "r: no such run directory; .*"]),
        (
            ["prune", "--target", "1", "--dry-run"],
            ["--dry-run: shows the plan of a sweep; write headlab prune -m --dry-run"],
        ),
        (["train", "modle=small"], ["modle: no such key; did you mean model?"]),
        (["train", "model=smal"], ["model=smal: no such model; did you mean small\\? .*"]),
        (["prnue", "--target", "10"], ["prnue: no such verb; did you mean prune?"]),
        (["--seed", "1"], ["no verb; one of data, train, prune, sweep, evaluate, translate, report, validate"]),
        (["train", "small"], ["small: train takes no such argument; did you mean a key=value?"]),
        (["evaluate"], ["evaluate: needs RUN; see headlab evaluate --help"]),
        (["evaluate", "no/such"], ["no/such: no such run directory; .*"]),
        (["report", "none"], ["results/none: there is no rows.csv; recorded experiments: none yet"]),
        (["train", "x", "--seed", "a", "--lr", "1"], ["x: .*", "--lr: no such flag; .*", "seed=a: expected .*"]),
    ],
)
def test_wrong_input_is_told_in_lines_and_exits_with_2(headlab: Run, arguments: list[str], lines: list[str]) -> None:
    done = headlab(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    found = done.stderr.splitlines()
    assert len(found) == len(lines)
    for text, line in zip(found, lines, strict=True):
        assert text == f"headlab: {line}" or re.fullmatch(f"headlab: {line}", text)


def test_validate_prints_a_configuration_that_loads(headlab: Run, tmp_path: Path) -> None:
    done = headlab("validate", "--experiment", "smoke", "--seed", "4")
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "printed.yaml").write_text(done.stdout)
    assert load_config(tmp_path / "printed.yaml") == compose(["experiment=smoke", "seed=4"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["printed.yaml"]  # Hydra leaves no folder behind


def test_help_is_instant_and_loads_no_library(headlab: Run, tmp_path: Path) -> None:
    heavy = "torch fairseq hydra omegaconf numpy pandas rich sentencepiece sacrebleu matplotlib"
    code = (
        "import sys; from headlab.cli import main; main(['prune', '--help']);"
        f"sys.exit(', '.join(set('{heavy}'.split()) & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    started = time.monotonic()
    assert headlab("--help").stdout == OVERVIEW
    assert time.monotonic() - started < 2  # 0.1 s on a quiet machine


@pytest.mark.parametrize("verb", list(VERBS))
def test_help_fits_a_screen_and_ends_with_two_examples_that_are_valid(
    headlab: Run, calls: Calls, verb: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = headlab(verb, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 120
    assert lines[-3] == "examples:"
    monkeypatch.chdir(run.parent)
    monkeypatch.setattr("headlab.sweep.sweep", lambda cells, dry_run: None)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    (run.parent / "runs" / "pruned").mkdir(parents=True)
    run.rename(run.parent / "runs" / "pruned" / "en_ru-l0-10-0123abcd")
    for line in lines[-2:]:
        assert f"headlab {verb}" in line
        words = line.rpartition("headlab ")[2].partition(" <")[0].split()
        assert cli.main(words) == (2 if verb == "report" else 0)  # there are no rows here


def test_every_flag_and_key_in_the_help_exists() -> None:
    known = {*keys(), *groups()}
    for text in VERBS.values():
        flags = {cli.FLAGS.get(flag, flag.replace("-", "_")) for flag in re.findall(r"--([a-z-]+)", text)} - {
            "flag",
            "dry_run",
        }
        assert flags <= known, flags - known
        written = {key for key in re.findall(r"\b([a-z0-9_.]+)=", text) if key not in ("key", "a.b")}
        assert written <= known, written - known


def test_evaluate_and_translate_take_the_run(calls: Calls, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["evaluate", str(run), "--beam", "2"]) == 0
    ((verb, folder, cfg),) = calls.made
    assert isinstance(cfg, Config)
    assert (verb, folder, cfg.score.beam, cfg.model.name) == ("evaluate", run, 2, "tiny")
    assert cli.main(["evaluate", str(run), "model=small"]) == 2
    (run / "DONE").unlink()
    assert cli.main(["evaluate", str(run)]) == 2
    assert len(calls.made) == 1


def test_translate_keeps_one_line_for_each_line(
    calls: Calls, run: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    text = "дом\r\n\na\u2028b\u0085c\nlast".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert cli.main(["translate", str(run)]) == 0
    assert calls.made[0][2] == ["дом", "", "a\u2028b\u0085c", "last"]
    assert capfdbinary.readouterr().out == "ДОМ\n\nA\u2028B\u0085C\nLAST\n".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"fine\n\xff\n")))
    assert cli.main(["translate", str(run)]) == 2
    assert b"standard input, line 2: is not UTF-8" in capfdbinary.readouterr().err


@pytest.mark.parametrize(
    ("failure", "code", "lines"),
    [
        (UserError("one", "two"), 2, ["headlab: one", "headlab: two"]),
        (RunError("loss is NaN\nat update 3"), 1, ["headlab: loss is NaN at update 3"]),
        (OSError(errno.ENOSPC, "No space left on device", "runs/x"), 1, ["headlab: runs/x: No space left on device"]),
        (ModuleNotFoundError("no", name="fairseq.data"), 1, ["headlab: fairseq is not installed; run .*"]),
    ],
)
def test_failures_become_exit_codes(
    calls: Calls, capsys: pytest.CaptureFixture[str], failure: Exception, code: int, lines: list[str]
) -> None:
    calls.failure = failure
    assert cli.main(["train"]) == code
    found = capsys.readouterr().err.splitlines()
    assert len(found) == len(lines)
    assert all(re.fullmatch(line, text) for line, text in zip(lines, found, strict=True))


def test_only_a_bug_shows_a_traceback(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    calls.failure = KeyError("x")
    assert cli.main(["train"]) == 1
    found = capsys.readouterr().err
    assert "Traceback" in found
    assert found.splitlines()[-1].startswith("headlab: this is a bug in headlab")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_with_a_word_on_how_to_go_on(number: signal.Signals, code: int) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(  # type: ignore[call-overload]
        [sys.executable, "-c", LONG],
        text=True,
        # a background job of a shell inherits an ignored SIGINT, and headlab leaves that as it is
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **pipes,
    )
    with process:
        assert process.stdout.readline() == "on\n"
        process.send_signal(number)
        _, told = process.communicate(timeout=20)
    assert process.returncode == code
    assert told.count("\n") == 1
    assert told.endswith("run the same command again: headlab train --variant 'a b'\n")


def test_signal_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    assert cli.main(["--version"]) == 0
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_no_arguments_shows_the_overview(headlab: Run) -> None:
    done = headlab()
    assert (done.returncode, done.stdout, done.stderr) == (2, "", OVERVIEW)
