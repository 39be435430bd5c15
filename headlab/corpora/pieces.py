"""SentencePiece pieces: one BPE model for both languages of a corpus."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path

import sentencepiece

from headlab.errors import UserError
from headlab.runs import atomic_write

SPACE = "▁"  # U+2581 stands for a space inside pieces
RESERVED = ("<s>", "</s>", "<pad>", "<unk>")  # what these mean to fairseq, they must not mean in text


class Pieces:
    """Cuts lines into space-separated pieces and puts them together again.

    ``decode(encode(lines)) == lines`` for lines whose white space is single spaces, whatever their characters (one that
    the model has never seen becomes a piece of its own); U+2581 alone is read as a space.
    """

    def __init__(self, model_path: Path) -> None:
        if not model_path.is_file():
            raise UserError(f"{model_path}: there is no such SentencePiece model")
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_file=str(model_path))
        except RuntimeError:
            raise UserError(
                f"{model_path}: damaged, not a SentencePiece model; delete the run directory it is in and make it again"
            ) from None

    def encode(self, lines: Iterable[str]) -> list[str]:
        """One line of pieces per line; runs of white space count as one space."""
        cut: list[list[str]] = self._model.encode([" ".join(line.split()) for line in lines], out_type=str)
        return [" ".join(" ".join(piece) if piece in RESERVED else piece for piece in pieces) for pieces in cut]

    def decode(self, lines: Iterable[str]) -> list[str]:
        """The text of lines of pieces; also of sequences of pieces that ``encode`` would not have chosen."""
        return [line.replace(" ", "").replace(SPACE, " ").strip() for line in lines]


def learn(lines: Iterable[str], size: int, folder: Path) -> int:
    """Learn ``pieces.model`` and ``pieces.vocab`` in ``folder`` from training text; returns the number of pieces.

    It is smaller than ``size`` when the text does not have that many. Deterministic: one thread, nothing sampled.
    Raises UserError for a size below the number of different characters.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([" ".join(line.split()) for line in lines]),
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name="identity",  # text comes back exactly as it went in
            max_sentence_length=1 << 20,  # bytes; longer lines would be left out silently
            num_threads=1,
            shuffle_input_sentence=False,
            bos_id=-1,  # fairseq has its own
            eos_id=-1,
            minloglevel=2,
        )
    except RuntimeError as error:
        needed = re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error))
        raise UserError(
            f"data.pieces={size}: SentencePiece cannot make a model of that size from this text"
            + (f", whose characters alone need {needed[1]}; set more" if needed else f" ({error})")
        ) from None
    atomic_write(folder / "pieces.model", model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    count = processor.get_piece_size()
    rows = [f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n" for i in range(count)]
    atomic_write(folder / "pieces.vocab", "".join(rows))
    return count
