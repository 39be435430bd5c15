"""What fairseq is told, and how what it says is compared."""

from __future__ import annotations

import pytest
from benchmarking.padding import Padding, by_both, padding
from benchmarking.same import Compared, check_losses, compared, differing
from benchmarking.stock import _hypotheses, configuration, train_arguments

from headlab.config import Config, DataConfig, ModelConfig, OptimConfig
from headlab.errors import RunError, UserError


def config(**optim) -> Config:
    settings = {"updates": 900, "batch_tokens": 512, "lr": 0.002, "warmup": 40, "schedule": "linear", **optim}
    data = DataConfig(name="digits", source_lang="xx", target_lang="yy")
    model = ModelConfig("test", 2, 3, 4, 32, 40, dropout=0.15, attention_dropout=0.0, activation_dropout=0.0)
    return Config(data=data, model=model, optim=OptimConfig(name="test", **settings), seed=7)


def test_fairseq_gets_headlabs_settings(tmp_path) -> None:
    cfg = configuration(train_arguments(config(), tmp_path, "cpu", tmp_path))
    model = cfg.model
    assert (model.encoder_layers, model.decoder_layers, model.encoder_attention_heads) == (2, 3, 4)
    assert (model.decoder_embed_dim, model.encoder_ffn_embed_dim, model.encoder_normalize_before) == (32, 40, True)
    assert (model.dropout, model.attention_dropout, model.activation_dropout) == (0.15, 0.0, 0.0)
    assert (cfg.optimizer.adam_betas, cfg.optimizer.adam_eps) == ("(0.9, 0.98)", 1e-9)
    assert (cfg.lr_scheduler._name, cfg.lr_scheduler.total_num_update) == ("polynomial_decay", 900)
    assert (cfg.lr_scheduler.warmup_updates, list(cfg.optimization.lr)) == (40, [0.002])
    assert (cfg.dataset.max_tokens, cfg.dataset.required_batch_size_multiple) == (512, 1)
    assert (cfg.common.seed, cfg.common.cpu, cfg.common.fp16) == (7, True, False)
    assert cfg.criterion.label_smoothing == 0.1


def test_a_schedule_that_fairseq_is_not_told_is_refused(tmp_path) -> None:
    with pytest.raises(UserError, match=r"optim\.schedule=cosine"):
        train_arguments(config(schedule="cosine"), tmp_path, "cpu", tmp_path)


def test_best_translations_are_read_in_the_order_of_the_corpus() -> None:
    said = "S-10\tx\nH-10\t-0.5\tc d\nD-10\t-0.5\tc d\nS-2\ty\nH-2\t-0.1\t\nS-0\tz\nH-0\t-1\ta b\n"
    assert _hypotheses(said) == ["a b", "", "c d"]


@pytest.mark.parametrize("difference", [(2e-5, 0.0), (0.0, 2e-4), (float("nan"), 0.0)])
def test_programs_that_compute_something_else_are_refused(difference) -> None:
    assert "1.0e-07" in check_losses(1e-7, 1e-6)
    with pytest.raises(RunError, match="do not compute the same"):
        check_losses(*difference)


def test_translations_that_differ_are_sorted_by_why() -> None:
    ours, theirs = ["a", "b", "c " * 14, "d"], ["a", "x", "y", "z"]
    numbers = differing(ours, theirs)
    assert numbers == [1, 2, 3]
    pairs = [(ours[n], theirs[n]) for n in numbers]
    found = compared(4, [2, 2, 2], pairs, [(-1.0, -1.00001), (-3.0, -1.0), (-1.0, -1.1)])
    assert found == Compared(same=1, ties=1, limit=1, others=1)
    with pytest.raises(
        RunError, match="1 of 4 translations are the same, 1 are ties, 1 end at the length limit, 1 differ"
    ):
        found.check()
    Compared(same=1998, ties=1, limit=0, others=1).check()


def test_padding_of_batches_made_by_hand() -> None:
    # sources 1, 3 and 2, padded to 2 x 3 + 2 = 8 positions; targets 2, 2 and 5, which need no padding
    assert padding([[0, 1], [2]], [1, 3, 2], [2, 2, 5]) == Padding(0.25, 0.0, pytest.approx(2 / 17))


def test_sentences_sorted_by_both_lengths() -> None:
    # bands of source lengths 2, 3 | 4, 5: targets fall in the first and rise in the second
    assert by_both([4, 2, 5, 3, 2], [1, 7, 9, 5, 6], 2).tolist() == [1, 4, 3, 0, 2]
