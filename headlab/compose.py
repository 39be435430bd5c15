"""From the command line's ``key=value`` to one checked configuration; every error is told at once.

Hydra composes the files of conf/; the values on top are checked against the schema of :mod:`headlab.config`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from headlab.checks import Problem, check
from headlab.config import Config
from headlab.errors import UserError
from headlab.progress import say
from headlab.runs import atomic_write

#: What of a configuration belongs to a base model, and is taken from it.
OF_BASE = ("data", "model", "optim")

#: What may be changed when a finished run is measured again or used.
OF_USE = ("score", "machine", "results", "results_dir", "runs_dir")

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", list[int]: "whole numbers, e.g. 32,16"}


def config_dir() -> Path:
    """The folder of Hydra's groups: inside an installed package, or beside it in a checkout."""
    inside = Path(__file__).parent / "conf"
    return inside if inside.is_dir() else Path(__file__).parents[1] / "conf"


def groups() -> dict[str, list[str]]:
    """The names of the groups of conf/ and of the files in each, without ``.yaml``; in a subfolder ``paper/name``."""
    folders = sorted(path for path in config_dir().iterdir() if path.is_dir())
    return {
        folder.name: sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))
        for folder in folders
    }


def keys() -> dict[str, Any]:
    """Every key of the schema, as ``group.key``, with its type (``str | None`` for one that may be null)."""
    return dict(_keys(Config, ""))


def _keys(schema: type, prefix: str) -> Iterable[tuple[str, Any]]:
    for name, kind in typing.get_type_hints(schema).items():
        if dataclasses.is_dataclass(kind):
            yield from _keys(typing.cast(type, kind), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", kind


def nearest(name: str, valid: Iterable[str]) -> str:
    """The valid names that ``name`` may have been meant for: those that end in it, or else the most similar one."""
    names = sorted(set(valid))
    if same_end := [full for full in names if full.endswith(f".{name}")]:
        return " or ".join(same_end)

    def likeness(full: str) -> float:
        group, _, last = full.rpartition(".")
        own, short = (difflib.SequenceMatcher(None, name, part).ratio() for part in (full, last))
        return max(own, short * 0.9 if group else short)  # "modle" is model rather than method.dsp.mode

    return max(names, key=lambda full: (likeness(full), -len(full)))


def compose(overrides: list[str], verb: str = "prune") -> Config:
    """The configuration that conf/ and ``overrides`` (``model=tiny``, ``prune.target=10``) make, checked for ``verb``.

    With ``base=RUN`` the data, model and optim groups are those of that run. Raises UserError with all problems.
    """
    found: list[Problem] = []
    choices, values = _sort(overrides, found)
    cfg = _composed(choices)
    # one count on the command line replaces an experiment's list, and the other way round
    for one, other in (("target", "targets"), ("targets", "target")):
        if values.get(f"prune.{one}", "null") != "null" and f"prune.{other}" not in values:
            cfg.prune[other] = None
    if "seed" in values and "seeds" not in values:
        cfg.seeds = None
    _assign(cfg, values, found)
    dropped = _drop_rivals(cfg, values) if not found else []
    if cfg.base is not None and verb != "train":
        _take_base(cfg, {*values, *(OF_BASE if "experiment" in choices else choices)}, found)
    result = _checked(cfg, verb, found)
    for line in dropped:
        say(line)
    return result


def compose_for_run(run: Path, overrides: list[str], verb: str = "evaluate") -> Config:
    """The configuration of the finished ``run`` with ``overrides`` of what may differ in its use (``OF_USE``)."""
    start = OmegaConf.structured(load_config(finished(run) / "config.yaml"))
    found: list[Problem] = []
    choices, values = _sort(overrides, found)
    for key in [*choices, *values]:
        if key.partition(".")[0] not in OF_USE:
            found.append((key, f"{key}: is fixed by the run; {verb} takes keys of {', '.join(OF_USE)}"))
            values.pop(key, None)
    _assign(start, values, found)
    return _checked(start, verb, found)


def finished(run: Path) -> Path:
    """``run`` if it is the directory of a finished run; raise UserError otherwise."""
    if not run.is_dir():
        raise UserError(f"{run}: no such run directory; finished runs are the folders with a DONE file under runs/")
    if not (run / "config.yaml").is_file():
        raise UserError(f"{run}: not a run directory, there is no config.yaml in it")
    if not (run / "DONE").is_file():
        raise UserError(f"{run}: this run is unfinished; run the command that began it again, it goes on from there")
    return run


def save_config(cfg: Config, path: Path) -> None:
    """Write the whole configuration as YAML that :func:`load_config` reads."""
    atomic_write(path, to_yaml(cfg))


def to_yaml(cfg: Config) -> str:
    """Every key of the configuration as YAML."""
    return OmegaConf.to_yaml(OmegaConf.structured(cfg))


def load_config(path: Path) -> Config:
    """Read the ``config.yaml`` of a run; raise UserError where it is damaged, incomplete or has an interpolation."""
    try:
        raw = OmegaConf.load(path)
        if not isinstance(raw, DictConfig):
            raise UserError(f"{path}: not a configuration")
        if "${" in path.read_text(encoding="utf-8"):
            raise UserError(f"{path}: contains an interpolation (${{...}}), which the config of a run never does")
        cfg = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), raw))
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{path}: cannot be read as the config of a run ({_first_line(error)})") from None
    return typing.cast(Config, cfg)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _sort(overrides: list[str], found: list[Problem]) -> tuple[dict[str, str], dict[str, str]]:
    """Split ``overrides`` into choices of files of a group and values of keys; of equal keys the last one counts."""
    options, schema = groups(), keys()
    choices: dict[str, str] = {}
    values: dict[str, str] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if key[:1] in ("+", "~"):
            found.append((key, f"{override}: headlab does not use Hydra's '+' and '~'; write {key.lstrip('+~')}=VALUE"))
        elif key in options and not equals:
            found.append((key, f"{key}: needs a name, e.g. {key}={options[key][0]}"))
        elif key in options and text not in options[key]:
            close = nearest(text, options[key])
            listed = ", ".join(options[key])
            found.append((key, f"{key}={text}: no such {key}; did you mean {close}? (there are {listed})"))
        elif key in options:
            choices[key] = text
        elif any(name.startswith(f"{key}.") for name in schema):
            within = [name for name in schema if name.startswith(f"{key}.")]
            found.append((key, f"{key}: is a group of keys; set one of {', '.join(within)}"))
        elif _kind(key, schema) is None:
            meant = nearest(key, [*schema, *options])  # what is said about the rest must not build on it
            found.append((meant, f"{key}: no such key; did you mean {meant}?"))
        elif not equals:
            found.append((key, f"{key}: needs a value, as in {key}=VALUE"))
        else:
            values[key] = text
    return choices, values


def _kind(key: str, schema: dict[str, Any]) -> Any:
    """The type of a key, also of one within a mapping such as ``prune.rivals.random``; None for an unknown key."""
    parent, _, name = key.rpartition(".")
    if key not in schema and name and typing.get_origin(schema.get(parent)) is dict:
        return typing.get_args(schema[parent])[1]
    return schema.get(key)


def _composed(choices: dict[str, str]) -> DictConfig:
    """What conf/ gives for these choices, merged into the typed schema."""
    try:
        files = {key: value for key, value in _files(tuple(choices.items())).items() if key != "sweep"}
        return typing.cast(DictConfig, OmegaConf.merge(OmegaConf.structured(Config), files))
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        key = getattr(error, "full_key", None)
        raise UserError(f"{config_dir()}: {f'{key}: ' if key else ''}{_first_line(error)}") from None


def sweep_of(experiment: str) -> Any:
    """What the file of an experiment says under ``sweep``, which is for :mod:`headlab.sweep`; {} where it has none."""
    if experiment not in groups()["experiment"]:
        return {}  # composing its cells tells
    found = _files((("experiment", experiment),)).get("sweep")
    return OmegaConf.to_container(found) if isinstance(found, Container) else found or {}


@functools.lru_cache(maxsize=1000)
def _files(choices: tuple[tuple[str, str], ...]) -> DictConfig:
    """What Hydra composes of the files of conf/, once for each combination of them: a sweep has many cells."""
    GlobalHydra.instance().clear()  # whatever a library left there
    with hydra.initialize_config_dir(str(config_dir().resolve()), version_base="1.3", job_name="headlab"):
        # not named "config": fairseq, once imported, has registered a schema of that name with Hydra
        return hydra.compose("headlab", [f"{group}={name}" for group, name in choices])


def _assign(cfg: DictConfig, values: dict[str, str], found: list[Problem]) -> None:
    """Set the keys of ``cfg`` to values of the command line, as far as they are of the right type."""
    schema = keys()
    parser = OverridesParser.create()
    for key, text in values.items():
        kind = _kind(key, schema)
        optional = isinstance(kind, types.UnionType) and types.NoneType in typing.get_args(kind)
        if optional:
            (kind,) = [part for part in typing.get_args(kind) if part is not types.NoneType]
        try:
            value: Any = text
            if "${" in text:
                raise ValueError("interpolation")
            if kind is str:  # taken as it stands, so that a path needs no quoting
                quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
                value = None if optional and text == "null" else text[1:-1] if quoted else text
            else:
                listed = typing.get_origin(kind) is list and text != "null" and not text.startswith("[")
                value = parser.parse_override(f"{key}=[{text}]" if listed else f"{key}={text}").value()
            OmegaConf.update(cfg, key, value, merge=False, force_add=True)  # a new rival adds its key
        except (HydraException, OmegaConfBaseException, ValueError):
            found.append((key, f"{key}={text}: expected {_expected(key, kind, schema)}"))


def _expected(key: str, kind: Any, schema: dict[str, Any]) -> str:
    if typing.get_origin(kind) is dict:
        return "names with whole numbers, e.g. {random: [10, 4]}"
    if kind is str:
        return "plain text without ${...}"
    words = _WORDS.get(kind, "names, e.g. enc-self,dec-self")
    return f"{words}; several go into {key}s" if f"{key}s" in schema else words


def _drop_rivals(cfg: DictConfig, values: dict[str, str]) -> list[str]:
    """Leave out an experiment's rivals at counts that are no targets any more, since others were asked for.

    Returns a line about each of them.
    """
    asked = {"prune.target", "prune.targets"} & values.keys()
    if not asked or any(key.startswith("prune.rivals") for key in values):
        return []
    targets = {cfg.prune.target, *(cfg.prune.targets or [])}
    told = []
    for name, counts in list(cfg.prune.rivals.items()):
        if lost := [count for count in counts if count not in targets]:
            told.append(f"left out: {name} at {', '.join(map(str, lost))}, which is not among the targets asked for")
            cfg.prune.rivals[name] = [count for count in counts if count in targets]
    return told


def _take_base(cfg: DictConfig, explicit: set[str], found: list[Problem]) -> None:
    """Replace what belongs to the base by that of the run ``cfg.base``; what was asked for must not contradict it."""
    try:
        base = OmegaConf.structured(load_config(finished(Path(cfg.base)) / "config.yaml"))
    except UserError as error:
        found += [("base", f"base: {line}") for line in error.problems]
        return
    bad = {key for key, _ in found}
    for key in keys():
        group = key.partition(".")[0]
        if group in OF_BASE and {key, group} & explicit and not {key, group} & bad:
            asked, given = (OmegaConf.select(c, key, throw_on_missing=False) for c in (cfg, base))
            if asked != given:
                found.append((key, f"{key}={asked}: the base has {given}; leave it out or train another base"))
    for group in OF_BASE:
        cfg[group] = base[group]


def _checked(cfg: DictConfig, verb: str, found: list[Problem]) -> Config:
    """``cfg`` as plain objects if nothing is wrong with it."""
    schema, bad = keys(), {key for key, _ in found}
    for key in sorted(OmegaConf.missing_keys(cfg)):
        if key not in bad:
            found.append((key, f"{key}: is not set; add {key}=VALUE"))
        bad.add(key)
        OmegaConf.update(cfg, key, "unset" if schema[key] is str else 1)  # only so that the rest can be checked
    result = typing.cast(Config, OmegaConf.to_object(cfg))
    found = found + check(result, verb, bad)
    if found:
        raise UserError(*dict.fromkeys(line for _, line in found))
    return result
