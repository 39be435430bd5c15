"""Run directories: what one training or pruning leaves behind, written so that a kill at any moment damages nothing."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import resource
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from headlab import __version__, cell
from headlab.errors import RunError, UserError

#: Distributions whose version can change a result; those that are not installed are left out of a manifest.
RECORDED = (
    "torch",
    "ve-fairseq",
    "fairseq-fixed",
    "hydra-core",
    "omegaconf",
    "sacrebleu",
    "sentencepiece",
    "numpy",
    "pandas",
    "safetensors",
)


def atomic_write(path: Path, data: str | bytes) -> None:
    """Put ``data`` (text as UTF-8) at ``path``: a reader sees the old file or the new one, never half of one.

    Missing parent folders are made.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as stream:
            stream.write(data.encode("utf-8") if isinstance(data, str) else data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically; NaN and infinity are a ValueError, since JSON has neither."""
    atomic_write(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file; raise UserError that names the file where it is missing or damaged."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: cannot be read as JSON ({error}); delete it and run the command again") from None


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content as 64 hex digits; raise UserError where it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def digest(value: Any) -> str:
    """Eight hex digits over the canonical JSON of ``value``: the order of keys does not matter."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()[:8]


class RunDir:
    """The directory ``runs_dir/stage/name-<digest of identity>``; finished if and only if it contains ``DONE``.

    ``identity`` is everything that can change the result and nothing else. Nothing is created before :meth:`open`.
    """

    def __init__(self, runs_dir: Path, stage: str, name: str, identity: Mapping[str, Any]) -> None:
        self.path = Path(runs_dir) / stage / f"{name}-{digest(identity)}"

    @classmethod
    def at(cls, path: Path) -> RunDir:
        """The run directory that is at ``path``, whatever made it."""
        run = cls(path.parent.parent, path.parent.name, path.name, {})
        run.path = path
        return run

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def __str__(self) -> str:
        return str(self.path)

    def file(self, name: str) -> Path:
        """The path of a file of this run."""
        return self.path / name

    @property
    def done(self) -> bool:
        """Whether the run is complete."""
        return (self.path / "DONE").is_file()

    def finish(self) -> None:
        """Mark the run complete; call it after everything else is written."""
        atomic_write(self.path / "DONE", "")

    @contextmanager
    def open(self, lock: bool = True) -> Iterator[RunDir]:
        """Make the directory and keep other headlab processes out of it meanwhile; raise RunError if one is in it.

        A cell of a sweep waits for the other process instead, and has to look afterwards whether the run is done.

        The lock is the kernel's (flock), so it is gone with the process however that ends.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{self.path}: cannot make this run directory ({error.strerror})") from None
        if not lock:
            yield self
            return
        with open(self.path / ".lock", "a+", encoding="utf-8") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if cell.folder() is None:
                    stream.seek(0)
                    holder = stream.read().strip() or "unknown"
                    raise RunError(
                        f"{self.path} is being worked on by another headlab (process {holder}): wait for it or stop it"
                    ) from None
                fcntl.flock(stream, fcntl.LOCK_EX)  # cells may need the same run: one makes it, others wait
            stream.truncate(0)
            stream.write(str(os.getpid()))
            stream.flush()
            yield self


def manifest(
    command: list[str],
    cfg: Mapping[str, Any],
    inputs: Mapping[str, Path],
    started: float,
    repo: Path | None,
) -> dict[str, Any]:
    """Where a result comes from, as a JSON value.

    ``started`` is the ``time.time()`` of the start (the wall time is in seconds), ``inputs`` are files whose SHA-256
    is recorded, ``repo`` the source checkout, if any. Absolute paths become relative to the working folder or the
    checkout, or lose their folders; the names of the user and the host do not occur.
    """
    roots = [root.resolve() for root in (Path.cwd(), repo) if root is not None]
    machine = cfg.get("machine", {})
    return {
        "command": [_without_roots(part, roots) for part in command],
        "config": _without_roots(dict(cfg), roots),
        "git": _git(repo),
        "versions": _versions(),
        "hardware": _hardware(),
        "threads": _threads(machine.get("threads")),
        "precision": machine.get("precision"),
        "seed": cfg.get("seed"),
        "inputs": {
            name: {"path": _without_roots(str(Path(path).resolve()), roots), "sha256": sha256_of(path)}
            for name, path in inputs.items()
        },
        "wall_seconds": round(time.time() - started, 1),
        "peak_memory_mb": _peak_memory(),
    }


def _without_roots(value: Any, roots: list[Path]) -> Any:
    """``value`` with the absolute paths in it (alone, or after a ``key=``) made relative or reduced to their name."""
    if isinstance(value, Mapping):
        return {key: _without_roots(item, roots) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_roots(item, roots) for item in value]
    if not isinstance(value, str):
        return value
    key, equals, text = value.rpartition("=")
    if not text.startswith("/"):
        return value
    for root in roots:
        if Path(text).is_relative_to(root):
            return key + equals + str(Path(text).relative_to(root))
    return key + equals + Path(text).name


def _git(repo: Path | None) -> dict[str, Any] | None:
    """The commit of the checkout and whether anything but results/ differs from it; None outside a checkout."""
    if repo is None:
        return None

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(repo), *arguments], capture_output=True, text=True, check=True, timeout=30
        ).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        # results/ is what a run writes: new rows do not make the code another one
        return {"commit": commit, "dirty": bool(git("status", "--porcelain", "--", ".", ":(exclude)results"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "headlab": __version__}
    for name in RECORDED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _hardware() -> dict[str, Any]:
    model = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    hardware: dict[str, Any] = {
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu": model,
        "cores": os.cpu_count(),
    }
    torch = sys.modules.get("torch")  # looked at only where the run used it
    if torch is not None and torch.cuda.is_available():
        hardware["gpus"] = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return hardware


def _threads(configured: int | None) -> int | None:
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch is not None else configured


def _peak_memory() -> int:
    """The largest resident size of this process or a child of it, in MB (getrusage counts KB, on macOS bytes)."""
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return round(peak / (1024 * 1024 if sys.platform == "darwin" else 1024))
