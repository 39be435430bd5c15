"""Translation, from lines of text to lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from fairseq.data.data_utils import collate_tokens
from torch import Tensor

from headlab.config import ScoreConfig
from headlab.corpora import Pieces
from headlab.fairseq_plugin.components import HeadlabTask
from headlab.fairseq_plugin.model import MAX_POSITIONS, HeadlabTransformer
from headlab.fairseq_plugin.search import Search

#: Batches that are translated at once on a CPU. The operations of a batch are too small to keep many threads busy;
#: more batches than this wait for Python's lock.
AT_ONCE = 4


class Translator:
    """Translate detokenised text with one model.

    A hypothesis has at most 2 x source length + 10 pieces; the source is cut at the model's longest input. On a CPU
    the threads of torch are shared out among a few batches, which changes no translation, and all is in full precision:
    products of a few rows, as the search has them, are several times slower in bf16 than in fp32.
    """

    def __init__(self, model: HeadlabTransformer, task: HeadlabTask, pieces: Pieces, cfg: ScoreConfig) -> None:
        self.model, self.task, self.pieces, self.batch = model.eval(), task, pieces, cfg.batch_sentences
        self.device = next(model.parameters()).device
        target = task.target_dictionary
        self.search = Search(model, cfg.beam, cfg.lenpen, target.eos(), target.pad())

    def __call__(self, lines: list[str], progress: Callable[[int], None] | None = None) -> list[str]:
        """The translation of each line, in the same order; an empty line stays empty."""
        source = self.task.source_dictionary
        encoded = [
            source.encode_line(text, add_if_not_exist=False, append_eos=True).long()[-(MAX_POSITIONS - 1) :]
            for text in self.pieces.encode(lines)
        ]
        # The longest come first: what takes longest is not left to the end.
        order = sorted((i for i, text in enumerate(lines) if text.strip()), key=lambda i: -len(encoded[i]))
        batches = [order[start : start + self.batch] for start in range(0, len(order), self.batch)]
        found = [""] * len(lines)
        done = 0
        for batch, words in zip(batches, self._searches([[encoded[i] for i in b] for b in batches]), strict=True):
            for index, translation in zip(batch, words, strict=True):
                found[index] = self.task.target_dictionary.string(translation)
            done += len(batch)
            if progress is not None:
                progress(done)
        return self.pieces.decode(found)

    def _searches(self, batches: Sequence[list[Tensor]]) -> Iterator[list[Tensor]]:
        """The translations of each batch, in order."""
        threads = torch.get_num_threads()
        at_once = max(min(threads, AT_ONCE, len(batches)), 1) if self.device.type == "cpu" else 1
        torch.set_num_threads(threads // at_once)  # of each thread that begins from now on
        try:
            with ThreadPoolExecutor(at_once) as pool:
                yield from pool.map(self._search, batches)
        finally:
            torch.set_num_threads(threads)

    def _search(self, sentences: list[Tensor]) -> list[Tensor]:
        with torch.inference_mode():
            tokens = collate_tokens(sentences, self.task.source_dictionary.pad(), left_pad=True).to(self.device)
            lengths = torch.tensor([len(sentence) for sentence in sentences], device=self.device)
            return self.search(tokens, lengths, (2 * lengths + 10).clamp(max=MAX_POSITIONS - 2))
