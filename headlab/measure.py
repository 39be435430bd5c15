"""From a model folder to its row: translations, scores, size, speed, and the difference from its control."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from headlab.attention.heads import Layout
from headlab.checks import scope_of
from headlab.compose import load_config
from headlab.config import Config, ModelConfig
from headlab.fairseq_plugin.generation import Translator
from headlab.fairseq_plugin.modelfiles import load_model, read_layout
from headlab.fairseq_plugin.setup import Machine
from headlab.lite import model_shape
from headlab.paper import paper_bleu
from headlab.progress import Progress, say
from headlab.report.resamples import Resamples
from headlab.report.rows import Row
from headlab.runs import RunDir, atomic_write, digest, read_json, sha256_of, write_json
from headlab.scoring.size import flops, parameters
from headlab.scoring.speed import measure_speed
from headlab.scoring.text import compare, resampled_bleu, score_text


@dataclass(frozen=True)
class Spent:
    """Updates after the base, and the wall time of all training, that of the base included."""

    selection: int = 0
    finetune: int = 0
    seconds: float | None = None


@dataclass(frozen=True)
class Measure:
    """Measures models of one corpus under one decoding setting; ``base`` is what speed is compared with."""

    cfg: Config
    machine: Machine
    data: RunDir
    base: RunDir | None

    def row(self, folder: Path, method: str, variant: str, target: int | None, spent: Spent,
            control: Path | None = None, reference: str = "") -> Row:  # fmt: skip
        """Measure the model in ``folder``; what was measured before is read from ``scores.json`` there."""
        cfg, scope = self.cfg, scope_of(self.cfg)
        langs = (cfg.data.source_lang, cfg.data.target_lang)
        layout = read_layout(folder)
        scores = self.scores(folder)
        shape = _shape(run_of(folder).resolve())  # which need not be that of the base
        speed = (self._known_speed(folder) if self.base is not None else None) or {}
        row = Row(
            experiment=cfg.results, method=method, variant=variant, scope=" ".join(scope), target=target,
            seed=cfg.seed, heads_total=layout.total(scope), heads_kept=layout.count(scope),
            kept_enc_self=layout.count(["enc-self"]), kept_dec_self=layout.count(["dec-self"]),
            kept_enc_dec=layout.count(["enc-dec"]), layout=str(layout),
            **scores, **speed, **self._size(shape, layout), **self._trained(folder, spent), run=str(folder),
            paper_bleu=paper_bleu(cfg.data.name, langs, scope, method, variant, layout),
        )  # fmt: skip
        if control is not None:
            self.scores(control)
            own, other, references = folder / "hypotheses.txt", control / "hypotheses.txt", self._text("test")[1]
            found = self._drawn(
                folder / "difference.json", [own, other],
                lambda: asdict(compare(_lines(own), _lines(other), references, cfg.score.bootstrap, cfg.data.seed)),
            )  # fmt: skip
            row.reference = reference
            row.delta_bleu, row.p_value = found["delta"], found["p_value"]
            row.delta_low, row.delta_high = found["low"], found["high"]
        return row

    def resamples(self, row: Row) -> Resamples:
        """BLEU of the model of ``row`` on the resamples that all models of this test set share."""
        samples, seed, references = self.cfg.score.bootstrap, self.cfg.data.seed, self._text("test")[1]
        folder = Path(row.run)
        hypotheses = folder / "hypotheses.txt"
        found = self._drawn(
            folder / "resamples.json", [hypotheses],
            lambda: {"bleu": resampled_bleu(_lines(hypotheses), references, samples, seed).round(3).tolist()},
        )  # fmt: skip
        assert row.bleu is not None
        return Resamples(
            row.experiment, row.method, row.variant, row.scope, row.target, row.seed,
            draws=f"{samples} of {len(references)} sentences {digest(references)}, seed {seed}", bleu=row.bleu,
            resampled=" ".join(f"{value:.3f}" for value in found["bleu"]),
        )  # fmt: skip

    def _drawn(self, path: Path, hypotheses: list[Path], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What ``make`` finds by drawing test sentences again and again: kept in ``path`` for another start."""
        drawn = {"samples": self.cfg.score.bootstrap, "seed": self.cfg.data.seed}
        texts = [sha256_of(each) for each in hypotheses]
        key = digest({"hypotheses": texts, "references": digest(self._text("test")[1]), **drawn})
        found = _cached(path, key)
        if found is None:
            found = make()
            write_json(path, {"key": key, "value": found})
        return found

    def scores(self, folder: Path) -> dict[str, Any]:
        """BLEU and chrF on test and BLEU on valid; translations stay in ``hypotheses.txt``."""
        found = self.known_scores(folder)
        if found is None:
            began = time.monotonic()
            translate = self._translator(folder)
            hypotheses = {}
            for split in ("valid", "test"):
                sources, _ = self._text(split)
                with Progress(f"translating {split} with {folder}", len(sources)) as progress:
                    hypotheses[split] = translate(sources, progress.at)
            test = score_text(hypotheses["test"], self._text("test")[1])
            valid = score_text(hypotheses["valid"], self._text("valid")[1])
            found = {**asdict(test), "valid_bleu": valid.bleu}
            atomic_write(folder / "hypotheses.txt", "".join(line + "\n" for line in hypotheses["test"]))
            seconds = round(time.monotonic() - began, 1)
            write_json(folder / "scores.json", {"key": self._score_key(folder), "value": found, "seconds": seconds})
        return found

    def known_scores(self, folder: Path) -> dict[str, Any] | None:
        """:meth:`scores` if the model in ``folder`` was translated before, else None."""
        kept = (folder / "hypotheses.txt").exists()
        return _cached(folder / "scores.json", self._score_key(folder)) if kept else None

    def speeds(self, folders: Sequence[Path]) -> None:
        """Measure the speed of the smaller models among ``folders`` in turn with that of the base: ``speed.json``.

        Sentences per second, and how many times that of the base; what was measured before is left alone.
        """
        assert self.base is not None
        missing = [f for f in dict.fromkeys(folders) if self._smaller(f) and self._known_speed(f) is None]
        if not missing:
            return
        began, score = time.monotonic(), self.cfg.score
        sentences = self._text("test")[0]
        step = max(len(sentences) // score.speed_sentences, 1)
        chosen = sentences[::step][: score.speed_sentences]
        translators = {folder: self._translator(folder) for folder in [self.base.path, *missing]}
        say(f"measuring the speed of {len(missing)} models beside that of {self.base}")
        rounds = measure_speed(translators, chosen, score.speed_rounds)
        seconds = time.monotonic() - began
        for folder in missing:
            own, base = rounds[folder], rounds[self.base.path]
            ratios = [p / b for p, b in zip(own, base, strict=True)]
            found = {"sentences_per_s": median(own), "speedup": median(ratios)}
            record = {"key": self._speed_key(folder), "value": found, "rounds": {"base": base, "pruned": own}}
            write_json(folder / "speed.json", {**record, "seconds": round(seconds / len(missing), 1)})

    def _score_key(self, folder: Path) -> str:
        return self._key(folder, beam=self.cfg.score.beam, lenpen=self.cfg.score.lenpen)

    def _smaller(self, folder: Path) -> bool:
        """Whether a model is another than the base in anything but its weights."""
        layout = read_layout(folder)
        return layout.count() < layout.total() or _shape(run_of(folder).resolve()) != self.cfg.model

    def _speed_key(self, folder: Path) -> str:
        assert self.base is not None
        base, machine = sha256_of(self.base / "model.safetensors"), asdict(self.machine)
        return self._key(folder, **asdict(self.cfg.score), base=base, machine=machine)

    def _known_speed(self, folder: Path) -> dict[str, Any] | None:
        return _cached(folder / "speed.json", self._speed_key(folder))

    def _size(self, model: ModelConfig, layout: Layout) -> dict[str, Any]:
        source, target = (
            4 + len(_lines(self.data / "bin" / f"dict.{lang}.txt"))
            for lang in (self.cfg.data.source_lang, self.cfg.data.target_lang)
        )
        shape = model_shape(model, source, target)
        return {
            "params": parameters(shape, layout, embeddings=True),
            "params_no_embeddings": parameters(shape, layout, embeddings=False),
            "flops": flops(shape, layout),
        }

    def _trained(self, folder: Path, spent: Spent) -> dict[str, Any]:
        """Updates, seconds and the last valid loss of the run that trained the model."""
        run = run_of(folder)
        losses = (
            [json.loads(line) for line in _lines(run / "metrics.jsonl")] if (run / "metrics.jsonl").exists() else []
        )
        measured = [line["valid_loss"] for line in losses if "valid_loss" in line]
        return {
            "updates_base": self.cfg.optim.updates,
            "updates_selection": spent.selection,
            "updates_finetune": spent.finetune,
            "train_seconds": spent.seconds,
            "loss": measured[-1] if measured and folder == run else None,
            "precision": self.machine.precision,
            "threads": self.machine.threads,
        }

    def _text(self, split: str) -> tuple[list[str], list[str]]:
        langs = (self.cfg.data.source_lang, self.cfg.data.target_lang)
        source, target = (_lines(self.data / f"{split}.{lang}") for lang in langs)
        return source, target

    def _translator(self, folder: Path) -> Translator:
        data = self.cfg.data
        shape = _shape(run_of(folder).resolve())
        model, task, pieces = load_model(folder, shape, data.source_lang, data.target_lang, self.machine)
        return Translator(model, task, pieces, self.cfg.score)

    def _key(self, folder: Path, **settings: Any) -> str:
        return digest({"model": sha256_of(folder / "model.safetensors"), "data": self.data.path.name, **settings})


def run_of(folder: Path) -> Path:
    """The run that a model folder belongs to: itself, or for ``at-<updates>`` the one around it."""
    return folder if (folder / "manifest.json").exists() else folder.parent


@cache
def _shape(run: Path) -> ModelConfig:
    """The shape of the model that was built in ``run``."""
    return load_config(run / "config.yaml").model


def _cached(path: Path, key: str) -> dict[str, Any] | None:
    if not path.exists():
        return None
    found = read_json(path)
    return dict(found["value"]) if found.get("key") == key else None


def _lines(path: Path) -> list[str]:
    """The lines of a text file; only a line feed ends a line."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
