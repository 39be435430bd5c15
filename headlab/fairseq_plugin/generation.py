"""Beam search with fairseq's generator, from lines of text to lines of text."""

from __future__ import annotations

from collections.abc import Callable

import torch
from fairseq import utils
from fairseq.data import LanguagePairDataset
from fairseq.sequence_generator import SequenceGenerator

from headlab.config import ScoreConfig
from headlab.corpora import Pieces
from headlab.fairseq_plugin.components import HeadlabTask
from headlab.fairseq_plugin.model import MAX_POSITIONS, HeadlabTransformer


class Translator:
    """Translate detokenised text with one model.

    A hypothesis has at most 2 x source length + 10 pieces; the source is cut at the model's longest input.
    """

    def __init__(self, model: HeadlabTransformer, task: HeadlabTask, pieces: Pieces, cfg: ScoreConfig) -> None:
        self.model, self.task, self.pieces, self.batch = model.eval(), task, pieces, cfg.batch_sentences
        self.device = next(model.parameters()).device
        self.generator = SequenceGenerator(
            [model], task.target_dictionary, beam_size=cfg.beam, len_penalty=cfg.lenpen, max_len_a=2, max_len_b=10,
            max_len=MAX_POSITIONS - 1,
        )  # fmt: skip

    def __call__(self, lines: list[str], progress: Callable[[int], None] | None = None) -> list[str]:
        """The translation of each line, in the same order; an empty line stays empty."""
        source = self.task.source_dictionary
        encoded = [
            source.encode_line(text, add_if_not_exist=False, append_eos=True).long()[-(MAX_POSITIONS - 1) :]
            for text in self.pieces.encode(lines)
        ]
        dataset = LanguagePairDataset(encoded, [len(e) for e in encoded], source, shuffle=False)
        order = sorted((i for i, text in enumerate(lines) if text.strip()), key=lambda i: len(encoded[i]))
        found = [""] * len(lines)
        with torch.inference_mode(), self.task.context():
            for start in range(0, len(order), self.batch):
                sample = dataset.collater([dataset[i] for i in order[start : start + self.batch]])
                sample = utils.move_to_cuda(sample) if self.device.type == "cuda" else sample
                found_beams = self.generator.generate([self.model], sample)
                for index, beams in zip(sample["id"].tolist(), found_beams, strict=True):
                    found[index] = self.task.target_dictionary.string(beams[0]["tokens"])
                if progress is not None:
                    progress(min(start + self.batch, len(order)))
        return self.pieces.decode(found)
