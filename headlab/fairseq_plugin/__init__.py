"""The only folder that imports fairseq: binarising, model, criterion, training, generation, checkpoints."""

import logging
import warnings

_root = logging.getLogger()
_before = _root.level, _root.handlers[:]

import fairseq.models  # noqa: E402
import fairseq.tasks  # noqa: E402, F401

# Several modules of fairseq configure the root logger when they are imported, one of them to DEBUG; which one comes
# first depends on the order of files in a folder.
_root.setLevel(_before[0])
_root.handlers[:] = _before[1]
# fairseq logs its whole configuration and every step; headlab has progress lines and metrics.jsonl instead.
logging.getLogger("fairseq").setLevel(logging.WARNING)
warnings.filterwarnings("ignore", message=".*pin_memory.*", category=UserWarning)
