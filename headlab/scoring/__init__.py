"""Measuring models: BLEU and chrF with intervals, sizes, speed. Runs without torch and fairseq."""
