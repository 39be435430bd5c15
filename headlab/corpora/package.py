"""``data.source=package``: translations that ship inside two public Python packages.

Home Assistant keeps its texts as JSON, one file per language with the same keys in every language, so that equal keys
give aligned pairs. The wheels are fetched with pip, checked by sha256 and read with zipfile; nothing of them is
installed or run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headlab.errors import RunError, UserError
from headlab.progress import say
from headlab.runs import sha256_of

Texts = dict[tuple[str, ...], str]  # by key path: (wheel, part, key, key, ...)

LICENCE = "Home Assistant and its frontend, Apache License 2.0: https://www.apache.org/licenses/LICENSE-2.0"


@dataclass(frozen=True)
class Wheel:
    """A pinned wheel and where the texts of a language lie in it.

    ``texts`` is a regular expression over member names; its group ``lang`` is the language, ``part`` (which may be
    absent from a name) becomes the first element of every key.
    """

    project: str
    version: str
    sha256: str
    megabytes: int
    texts: str

    @property
    def filename(self) -> str:
        """The name of the file as package indexes spell it."""
        return f"{self.project.replace('-', '_')}-{self.version}-py3-none-any.whl"


WHEELS = (
    Wheel(
        project="homeassistant",
        version="2026.2.3",
        sha256="8167820cac4b8defe895fd2c36ac23402a445d1fe6028e8cde24caabb935282c",
        megabytes=51,
        texts=r"homeassistant/components/(?P<part>[^/]+)/translations/(?P<lang>[^/]+)\.json",
    ),
    Wheel(
        project="home-assistant-frontend",
        version="20261125.1",
        sha256="56292fc59343a1e15e0eae2502c5443975f66ab085b12e7c0d68e3e72429df89",
        megabytes=119,
        # A name is en-<32 hex digits>.json: the hash has a fixed form, so that en-GB-<hash> is the language en-GB.
        texts=r"hass_frontend/static/translations/(?:(?P<part>.+)/)?(?P<lang>[^/]+)-[0-9a-f]{32}\.json",
    ),
)


def cache_dir() -> Path:
    """The per-user cache: ``$HEADLAB_CACHE``, else ``$XDG_CACHE_HOME/headlab``, else ``~/.cache/headlab``."""
    own = os.environ.get("HEADLAB_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "headlab"


def obtain(wheel: Wheel, cache: Path) -> Path:
    """The verified wheel in ``cache/wheels``, fetched first when it is missing or damaged.

    Raises RunError when it cannot be fetched or what comes back is not the pinned file.
    """
    folder = cache / "wheels"
    path = folder / wheel.filename
    if path.is_file():
        if sha256_of(path) == wheel.sha256:
            return path
        say(f"{path} is damaged (its sha256 differs from the pinned one): fetching it again")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="fetching-") as temporary:
            fetched = _download(wheel, Path(temporary))
            if sha256_of(fetched) != wheel.sha256:
                raise RunError(
                    f"{wheel.filename}: the fetched file's sha256 is not the pinned {wheel.sha256[:12]}…; "
                    "check which package index pip is set to"
                )
            os.replace(fetched, path)
    except OSError as error:
        raise RunError(f"{folder}: cannot keep {wheel.filename} there ({error}); set HEADLAB_CACHE elsewhere") from None
    return path


def _download(wheel: Wheel, folder: Path) -> Path:
    say(f"fetching {wheel.project} {wheel.version} ({wheel.megabytes} MB, once)")
    # --python-version: the wheels ask for a newer Python than headlab's own; they are only read.
    command = [sys.executable, "-m", "pip", "download", f"{wheel.project}=={wheel.version}", "-d", str(folder)]
    command += ["--no-deps", "--only-binary=:all:", "--python-version", "3.14"]
    command += ["--no-input", "--quiet", "--disable-pip-version-check", "--retries", "2"]
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    fetched = folder / wheel.filename
    if done.returncode != 0 or not fetched.is_file():
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["pip said nothing"]
        errors = [line for line in said if line.startswith("ERROR:")] or said
        raise RunError(
            f"cannot fetch {wheel.project}=={wheel.version}, and {wheel.filename} is not in the cache; connect to a "
            f"package index, or put the wheel into the folder wheels of the cache (HEADLAB_CACHE); pip: {errors[-1]}"
        )
    return fetched


def read_texts(wheel: Wheel, path: Path, langs: tuple[str, str]) -> tuple[dict[str, Texts], set[str]]:
    """``{lang: {key path: text}}`` for the two languages, and all languages the wheel has."""
    texts: dict[str, Texts] = {lang: {} for lang in langs}
    languages = set()
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            match = re.fullmatch(wheel.texts, name)
            if match is None:
                continue
            languages.add(match["lang"])
            if match["lang"] in texts:
                prefix = (wheel.project, match["part"] or "")
                texts[match["lang"]].update(_flatten(json.loads(archive.read(name)), prefix))
    return texts, languages


def _flatten(tree: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, (*path, key))
        elif isinstance(value, str):
            yield (*path, key), value


def read_pairs(source_lang: str, target_lang: str, cache: Path) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Texts with the same key in both languages, in the order of the wheels, and how many texts each language has.

    Raises UserError for a language that the wheels do not have, RunError when they cannot be fetched.
    """
    langs = (source_lang, target_lang)
    pairs: list[tuple[str, str]] = []
    counts = dict.fromkeys(langs, 0)
    known: set[str] = set()
    for wheel in WHEELS:
        texts, languages = read_texts(wheel, obtain(wheel, cache), langs)
        known |= languages
        source, target = texts[source_lang], texts[target_lang]
        counts[source_lang] += len(source)
        counts[target_lang] += len(target)
        pairs += [(text, target[key]) for key, text in source.items() if key in target]
    missing = [lang for lang in langs if lang not in known]
    if missing:
        raise UserError(
            *(
                f"data.{side}_lang={lang}: source=package has no such language; it has {' '.join(sorted(known))}"
                for side, lang in zip(("source", "target"), langs, strict=True)
                if lang in missing
            )
        )
    return pairs, counts
