"""From text in pieces to fairseq's binary format."""

from __future__ import annotations

from pathlib import Path

from fairseq import tokenizer
from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer
from fairseq.data import Dictionary

SPLITS = ("train", "valid", "test")


def binarize(corpus: Path, source_lang: str, target_lang: str, joint: bool = False) -> Path:
    """Make ``corpus/bin`` from ``corpus/{split}.pieces.{lang}``; return the folder.

    Each language's dictionary holds the pieces that its training text uses, most frequent first, so that no
    output row is spent on a piece that cannot be learned; ``joint`` gives both languages one dictionary.
    """
    out = corpus / "bin"
    out.mkdir(exist_ok=True)
    langs = (source_lang, target_lang)
    dictionaries = {lang: Dictionary() for lang in langs}
    if joint:
        dictionaries = dict.fromkeys(langs, dictionaries[source_lang])
    for lang in langs:
        Dictionary.add_file_to_dictionary(
            str(corpus / f"train.pieces.{lang}"), dictionaries[lang], tokenizer.tokenize_line, num_workers=1
        )
    for dictionary in {id(d): d for d in dictionaries.values()}.values():
        dictionary.finalize(padding_factor=8)
    for lang in langs:
        dictionaries[lang].save(str(out / f"dict.{lang}.txt"))
        for split in SPLITS:
            FileBinarizer.multiprocess_dataset(
                str(corpus / f"{split}.pieces.{lang}"),
                "mmap",
                VocabularyDatasetBinarizer(dictionaries[lang], append_eos=True),
                str(out / f"{split}.{source_lang}-{target_lang}.{lang}"),
                vocab_size=len(dictionaries[lang]),
                num_workers=1,
            )
    return out
