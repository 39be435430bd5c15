"""The only folder that imports fairseq: binarising, model, criterion, training, generation, checkpoints."""

import logging
import warnings

# fairseq logs its whole configuration and every step; headlab has progress lines and metrics.jsonl instead.
logging.getLogger("fairseq").setLevel(logging.WARNING)
warnings.filterwarnings("ignore", message=".*pin_memory.*", category=UserWarning)
