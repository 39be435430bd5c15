"""headlab: train Transformer translation models, prune their attention heads, and tabulate BLEU against heads."""

__version__ = "0.1.0"
