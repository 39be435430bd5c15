"""The rows of the table: which two programs take turns, and what their windows say."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from headlab.attention.heads import KINDS, Layout
from headlab.checks import groups_of, layers_in_scope
from headlab.config import Config, ModelConfig
from headlab.corpora import Pieces
from headlab.errors import RunError, UserError
from headlab.fairseq_plugin.modelfiles import read_layout
from headlab.fairseq_plugin.setup import Corpus, Machine
from headlab.pruning import PruningStages
from headlab.runs import RunDir

from . import commands, ours, recorded, same, stock
from .document import Ratio, most_time, ratio, reached
from .padding import paddings
from .turns import Program, Stage, Window

#: What the rows of translation ask for, as fairseq-generate does by default, but for the beam.
BEAM, LENPEN, BATCH, LENGTH, HEADS = 5, 1.0, 256, 10, 2

Pair = tuple[Window, Window]


@dataclass
class Benchmark:
    """Everything that the rows need: ``updates`` to a window of training, ``pairs`` of windows to a row.

    ``experiment`` is what the ``headlab`` commands are given whose start and re-run are timed, ``wide`` the shape of
    the paper's speed row. ``out`` is where an earlier profile may lie, ``work`` a folder to make files in.
    """

    cfg: Config
    machine: Machine
    stage: Stage
    work: Path
    out: Path
    pairs: int
    updates: int
    experiment: list[str]
    wide: ModelConfig
    found: dict[str, list[Pair]] = field(default_factory=dict)

    # --- what is measured ---------------------------------------------------------------------------------------

    @cached_property
    def stages(self) -> PruningStages:
        """headlab's own stages, which find or make what is measured."""
        return PruningStages(self.cfg, self.machine)

    @cached_property
    def data(self) -> RunDir:
        """The corpus."""
        return self.stages.data()

    @cached_property
    def base(self) -> RunDir:
        """The trained model that is translated with."""
        return self.stages.base()

    @cached_property
    def corpus(self) -> Corpus:
        """The binarised corpus."""
        return Corpus(self.data / "bin", self.cfg.data.source_lang, self.cfg.data.target_lang)

    @cached_property
    def sources(self) -> list[str]:
        """The sources of the test set."""
        text = (self.data / f"test.{self.cfg.data.source_lang}").read_text(encoding="utf-8")
        return text.removesuffix("\n").split("\n")

    def inputs(self) -> dict[str, Path]:
        """The files that measured rows rest on."""
        found = {"pieces": self.data / "pieces.model"}
        return found | ({"base": self.base / "model.safetensors"} if "base" in vars(self) else {})

    def stock_train(self, updates: int) -> Program:
        """``fairseq-train``."""
        arguments = stock.train_arguments(self.cfg, self.corpus.bin, self.machine.device, self.work / "stock")
        return Program("fairseq-train", stock.train, (arguments, self.machine.threads, updates))

    def train(
        self, updates: int, precision: str = "fp32", gates: tuple[str, ...] = (), frozen: bool = False,
        algorithm: str | None = None, grouped: str | None = None,
    ) -> Program:  # fmt: skip
        """headlab's training, with the optimiser of the configuration or with ``algorithm``."""
        machine = replace(self.machine, precision=precision)
        optim = replace(self.cfg.optim, algorithm=algorithm or self.cfg.optim.algorithm)
        cfg = replace(self.cfg, optim=optim)
        return Program("headlab train", ours.train, (cfg, machine, self.corpus, updates, gates, frozen, grouped))

    def stock_translate(self) -> Program:
        """``fairseq-generate``."""
        score = replace(self.cfg.score, beam=BEAM, lenpen=LENPEN)
        arguments = stock.generate_arguments(self.cfg, self.corpus.bin, self.machine.device, score)
        shape = stock.train_arguments(self.cfg, self.corpus.bin, self.machine.device, self.work / "stock")
        weights = self.base / "model.safetensors"
        return Program("fairseq-generate", stock.generate, (arguments, shape, weights, self.machine.threads))

    def translate(self, folder: Path | None = None) -> Program:
        """headlab's translation of the test set with the model in ``folder`` (default: the base)."""
        score = replace(self.cfg.score, beam=BEAM, lenpen=LENPEN)
        arguments = (folder or self.base.path, self.cfg, score, self.machine, self.sources)
        return Program("headlab translate", ours.translate, arguments)

    def _in_turn(self, a: Program, b: Program) -> list[Pair]:
        """The pairs of ``a`` and ``b``; two rows that read the same pairs measure them once."""
        key = repr((a, b))
        if key not in self.found:
            self.found[key] = self.stage.in_turn(a, b, self.pairs)
        return self.found[key]

    # --- rows ---------------------------------------------------------------------------------------------------

    def row(self, name: str) -> Ratio:
        """Measure a row of ``document.ROWS``."""
        measured: Ratio = getattr(self, f"_{name.replace('-', '_')}")()
        return measured

    def checks(self) -> list[str]:
        """Lines about what was compared before the clock runs; RunError where the programs differ."""
        with tempfile.TemporaryDirectory() as folder:
            program = Program(
                "the comparison of losses", same.losses, (self.cfg, self.machine, self.corpus, Path(folder), 5)
            )
            found = self.stage.once(program)
        return [f"training: {same.check_losses(found['loss'], found['gradient'])}"]

    def profile(self, updates: int) -> dict[str, Window]:
        """Windows of ``updates`` updates, and of one translation of the test set, under the profiler, by program."""
        programs = [self.stock_train(updates), self.train(updates, self.machine.precision)]
        programs += [self.stock_translate(), self.translate()]
        return {program.name: self.stage.profile(program) for program in programs}

    def _train(self) -> Ratio:
        note = f"headlab's update is that of {self.cfg.optim.algorithm}, fairseq's that of adam"
        if self.machine.precision == "fp32":
            note += "; this machine does not multiply bf16, so headlab's default precision is fp32"
        return self._rates(
            "train", self.train(self.updates, self.machine.precision), self.stock_train(self.updates), note
        )

    def _train_fp32(self) -> Ratio:
        ours_ = self.train(self.updates, algorithm="adam")
        return self._rates("train-fp32", ours_, self.stock_train(self.updates))

    def _memory(self) -> Ratio:
        pairs = self._in_turn(self.train(self.updates), self.stock_train(self.updates))
        peaks = [f"{statistics.median(pair[side]['peak_mb'] for pair in pairs):.0f}" for side in (0, 1)]
        note = f"fp32, largest resident size of the process within a window: {peaks[0]} and {peaks[1]} MB"
        return ratio("memory", [a["peak_mb"] / b["peak_mb"] for a, b in pairs], note)

    def _batching(self) -> Ratio:
        share, best = paddings(self.corpus, self.machine, self.cfg.optim)
        note = (
            f"not built: of the stock batches of {self.cfg.optim.batch_tokens} tokens {share.both:.1%} is padding "
            f"(source {share.source:.1%}, target {share.target:.1%}); sorted by both "
            f"lengths they would have {best.both:.1%}, a gain of {(1 - best.both) / (1 - share.both):.3f}x"
        )
        return ratio("batching", [], note)

    def _gates_enc(self) -> Ratio:
        return self._gates("gates-enc", ("enc-self",))

    def _gates_all(self) -> Ratio:
        return self._gates("gates-all", KINDS)

    def _gates(self, row: str, kinds: tuple[str, ...]) -> Ratio:
        shape = self.cfg.model
        heads = Layout.full(shape.encoder_layers, shape.decoder_layers, shape.heads).total(kinds)
        gated = self.train(self.updates, self.machine.precision, kinds)
        return self._rates(row, gated, self.train(self.updates, self.machine.precision), f"{heads} gates")

    def _gha_v(self) -> Ratio:
        return self._gha("V")

    def _gha_o(self) -> Ratio:
        return self._gha("O")

    def _gha_a(self) -> Ratio:
        return self._gha("A")

    def _gha(self, feature_map: str) -> Ratio:
        grouped = self.train(self.updates, self.machine.precision, grouped=feature_map)
        note = f"{groups_of(self.cfg, None)[0]} groups in each of {layers_in_scope(self.cfg)} layers"
        plain = self.train(self.updates, self.machine.precision)
        return self._rates(f"gha-{feature_map.lower()}", grouped, plain, note)

    def _frozen(self) -> Ratio:
        frozen = self.train(self.updates, self.machine.precision, ("enc-self",), frozen=True)
        note = "with gates on the encoder's heads"
        return self._rates("frozen", frozen, self.train(self.updates, self.machine.precision), note)

    def _rates(self, row: str, a: Program, b: Program, note: str = "") -> Ratio:
        """Units a second of ``a`` over those of ``b``; RunError where their batches differ."""
        pairs = self._in_turn(a, b)
        for one, other in pairs:
            if one["batches"] != other["batches"]:
                raise RunError(f"{row}: the two programs did not train on the same batches")
        return self._line(row, pairs, "target tokens/s", note, a.name)

    def _line(self, row: str, pairs: list[Pair], unit: str, note: str, program: str) -> Ratio:
        rates = [tuple(window["units"] / window["seconds"] for window in pair) for pair in pairs]
        medians = [statistics.median(pair[side] for pair in rates) for side in (0, 1)]
        told = f"{medians[0]:.4g} and {medians[1]:.4g} {unit}"
        line = ratio(row, [a / b for a, b in rates], "; ".join(filter(None, [told, note])))
        if reached(line) is False and (most := most_time(self.out, program)):
            line.note += f"; most of the time: {most}"
        return line

    def _translate(self) -> Ratio:
        pairs = self._in_turn(self.translate(), self.stock_translate())
        ours_, theirs = pairs[0][0]["pieces"], pairs[0][1]["pieces"]
        found = self._compared(ours_, theirs)
        found.check()
        return self._line("translate", pairs, "sentences/s", str(found), "headlab translate")

    def _compared(self, ours_: list[str], theirs: list[str]) -> same.Compared:
        numbers = same.differing(ours_, theirs)
        sources = [self.sources[number] for number in numbers]
        both = [(ours_[number], theirs[number]) for number in numbers]
        score = replace(self.cfg.score, beam=BEAM, lenpen=LENPEN)
        arguments = (self.base.path, self.cfg, score, self.machine, sources, [list(pair) for pair in both])
        scores = self.stage.once(Program("the comparison of translations", same.scores, arguments))["scores"]
        lengths = [len(text.split()) for text in Pieces(self.data / "pieces.model").encode(sources)]
        return same.compared(len(ours_), lengths, both, scores)

    def _pruned(self) -> Ratio:
        target = self.cfg.prune.target
        assert target is not None
        run = self.stages.pruned(self.base, "l0", [target], target)
        pairs = self._in_turn(self.translate(run.path), self.translate())
        lengths = [statistics.mean(len(text.split()) for text in window["pieces"]) for window in pairs[0]]
        total = read_layout(self.base.path).count()
        note = f"{target} of {total} heads, fine-tuned; mean length {lengths[0]:.1f} and {lengths[1]:.1f} pieces"
        return self._line("pruned", pairs, "sentences/s", note, "headlab translate")

    def _paper_speed(self) -> Ratio:
        shape, score = self.wide, replace(self.cfg.score, beam=BEAM, lenpen=LENPEN, batch_sentences=BATCH)
        programs = [
            Program(
                "headlab translate", ours.translate_random,
                (shape, heads, self.corpus, score, self.machine, self.sources[:BATCH], LENGTH),
            )
            for heads in (min(HEADS, shape.heads), shape.heads)
        ]  # fmt: skip
        pairs = self._in_turn(programs[0], programs[1])
        lengths = {len(text.split()) for pair in pairs for window in pair for text in window["pieces"]}
        if lengths != {LENGTH}:
            raise RunError(f"paper-speed: translations have {min(lengths)} to {max(lengths)} pieces, not {LENGTH}")
        note = f"{shape.name} shape, width {shape.dim}; the paper measured on a GPU"
        return self._line("paper-speed", pairs, "sentences/s", note, "headlab translate")

    def _curve(self) -> Ratio:
        return self._from_runs("curve", recorded.curve)

    def _reproduce(self) -> Ratio:
        return self._from_runs("reproduce", recorded.reproduce)

    def _help(self) -> Ratio:
        return self._seconds("help", 0.3, lambda: commands.finished(["--help"]))

    def _start(self) -> Ratio:
        command = ["train", *self.experiment]
        runs = Path(self.cfg.runs_dir)
        return self._seconds("start", 10.0, lambda: commands.first_update(command, self.data.path, runs))

    def _again(self) -> Ratio:
        command = ["prune", *self.experiment, f"runs_dir={self.cfg.runs_dir}"]
        try:
            return self._seconds("again", 15.0, lambda: commands.run_again(command))
        except commands.NotFinished:
            return ratio("again", [], "left out: the experiment is not finished in these runs")

    def _seconds(self, row: str, limit: float, take: Callable[[], float]) -> Ratio:
        take()  # files come from the disk the first time
        seconds = [take() for _ in range(self.pairs)]
        return ratio(row, [each / limit for each in seconds], f"{statistics.median(seconds):.2f} s")

    def _from_runs(self, row: str, read: Callable[[recorded.Recorded], Ratio]) -> Ratio:
        try:
            return read(recorded.recorded(self.base.path))
        except UserError as error:
            return ratio(row, [], f"left out: {error}")
