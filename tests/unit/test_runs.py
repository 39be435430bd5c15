from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headlab import cell
from headlab.errors import RunError, UserError
from headlab.runs import RunDir, atomic_write, digest, manifest, read_json, sha256_of, write_json

HOLD = """
import sys, time
from pathlib import Path
from headlab.runs import RunDir
with RunDir(Path(sys.argv[1]), "train", "x", {}).open():
    print("locked", flush=True)
    time.sleep(60)
"""


def test_atomic_write_replaces_the_whole_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    atomic_write(path, "a long first text")
    atomic_write(path, "свет")
    assert path.read_bytes() == "свет".encode()
    assert os.listdir(path.parent) == ["file.txt"]


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    atomic_write(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_written_files_have_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    atomic_write(tmp_path / "ours", "")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_json_survives_and_nan_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"ü": [1, None, 0.5]})
    assert read_json(tmp_path / "a.json") == {"ü": [1, None, 0.5]}
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", float("nan"))


@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe"])
def test_damaged_json_is_an_error_of_one_line_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "heads.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"heads\.json: cannot be read as JSON") as error:
        read_json(path)
    assert len(str(error.value).splitlines()) == 1
    with pytest.raises(UserError, match=r"none\.json: no such file"):
        read_json(tmp_path / "none.json")


def test_sha256_of_abc(tmp_path: Path) -> None:
    (tmp_path / "abc").write_text("abc")
    # FIPS 180-2, appendix B.1
    assert sha256_of(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    with pytest.raises(UserError, match="none: cannot be read"):
        sha256_of(tmp_path / "none")


def test_digest_is_sha256_of_canonical_json() -> None:
    expected = hashlib.sha256(b'{"a":[1,null],"b":"x"}').hexdigest()[:8]
    assert digest({"b": "x", "a": [1, None]}) == digest({"a": (1, None), "b": "x"}) == expected
    assert digest({"a": 1}) != digest({"a": 2})


def test_a_run_is_finished_only_with_done(tmp_path: Path) -> None:
    run = RunDir(tmp_path, "train", "small", {"seed": 1})
    assert run.path.parent == tmp_path / "train"
    assert run.path.name.startswith("small-")
    assert run.path != RunDir(tmp_path, "train", "small", {"seed": 2}).path
    assert not run.path.exists()
    with run.open():
        assert not run.done
        run.finish()
    assert RunDir(tmp_path, "train", "small", {"seed": 1}).done


def test_the_lock_keeps_others_out_and_dies_with_its_process(tmp_path: Path) -> None:
    run = RunDir(tmp_path, "train", "x", {})
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(RunError, match=rf"another headlab \(process {holder.pid}\)"), run.open():
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with run.open():
            pass
        with run.open(), pytest.raises(RunError, match=rf"process {os.getpid()}\)"), run.open():
            pass
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()


def test_a_cell_of_a_sweep_waits_for_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cell.VARIABLE, str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        threading.Timer(0.2, holder.kill).start()
        with RunDir(tmp_path, "train", "x", {}).open():
            assert holder.wait() == -signal.SIGKILL


def test_manifest_says_where_a_result_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = tmp_path / "repo"
    elsewhere = tmp_path / "home-of-somebody" / "text.en"
    (repo / "results").mkdir(parents=True)
    elsewhere.parent.mkdir()
    elsewhere.write_text("abc")
    monkeypatch.chdir(repo)
    git = ["git", "-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "m"], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()

    def made() -> dict[str, object]:
        command = ["headlab", "prune", f"--base={repo}/runs/train/x", str(elsewhere)]
        cfg = {"seed": 3, "base": str(repo / "runs"), "machine": {"precision": "bf16", "threads": 2}}
        return manifest(command, cfg, {"text": elsewhere}, time.time() - 5, repo)

    value = made()
    assert value["command"] == ["headlab", "prune", "--base=runs/train/x", "text.en"]
    assert (value["seed"], value["precision"]) == (3, "bf16")
    sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert value["inputs"] == {"text": {"path": "text.en", "sha256": sha}}
    assert 5 <= float(str(value["wall_seconds"])) < 15
    assert 5 < float(str(value["peak_memory_mb"])) < 100_000
    assert str(tmp_path) not in json.dumps(value)
    assert os.uname().nodename not in json.dumps(value)

    (repo / "results" / "rows.csv").touch()
    assert made()["git"] == {"commit": commit, "dirty": False}
    (repo / "code.py").touch()
    assert made()["git"] == {"commit": commit, "dirty": True}
    assert manifest([], {}, {}, time.time(), None)["git"] is None
