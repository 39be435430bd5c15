"""Criterion, optimizer and schedule, against fairseq's own, torch's own, and closed forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from torch import nn

from headlab.attention.heads import KINDS
from headlab.config import L0Config
from headlab.fairseq_plugin.components import AdamConfig, GroupedAdam, ScheduleConfig, TranslationLoss, learning_rate
from headlab.fairseq_plugin.model import freeze_decoder
from headlab.methods.l0 import L0

from .conftest import dictionary, random_model

PAD = 1


class Task:
    target_dictionary = dictionary(30)


def sample(sentences: int = 3) -> dict[str, Any]:
    """Targets padded at the right; with 60 sentences more tokens than are looked at at once."""
    torch.manual_seed(3)
    source, target = torch.randint(4, 24, (sentences, 8)), torch.randint(4, 34, (sentences, 7))
    target[::2, 4:] = PAD
    previous = torch.cat([torch.full((sentences, 1), 2), target[:, :-1]], 1)
    lengths = torch.full((sentences,), 8)
    return {
        "net_input": {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": previous},
        "target": target,
        "ntokens": int((target != PAD).sum()),
    }


@pytest.mark.parametrize("sentences", [3, 60])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_the_loss_is_fairseqs_label_smoothed_cross_entropy(smoothing, sentences):
    model, data = random_model().train(), sample(sentences)
    loss, size, logged = TranslationLoss(Task(), smoothing, None)(model, data)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    logits, _ = model(**data["net_input"])
    words = logits.log_softmax(-1).view(-1, 34)
    expected, _ = label_smoothed_nll_loss(words, data["target"].view(-1), smoothing, ignore_index=PAD)
    expected.backward()
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    assert size == logged["ntokens"] == logged["sample_size"] == data["ntokens"]
    assert float(logged["loss"]) == pytest.approx(float(expected), rel=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=2e-5, rtol=1e-4, msg=name)


def test_a_frozen_decoder_still_gives_the_encoder_its_gradient():
    data = sample()
    whole, frozen = random_model().train(), random_model().train()
    freeze_decoder(frozen)
    for model in (whole, frozen):
        TranslationLoss(Task(), 0.1, None)(model, data)[0].backward()
    assert all(p.grad is None for p in frozen.decoder.parameters())
    for (name, expected), found in zip(whole.encoder.named_parameters(), frozen.encoder.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, msg=name)


def test_in_evaluation_neither_smoothing_nor_the_method_counts():
    model, data = random_model(), sample()
    method = L0(L0Config(penalty=1.0))
    method.attach(model, KINDS)
    model.eval()
    loss, _, logged = TranslationLoss(Task(), 0.1, method)(model, data)
    logits, _ = model(**data["net_input"])
    expected = nn.functional.cross_entropy(
        logits.view(-1, 34), data["target"].view(-1), ignore_index=PAD, reduction="sum"
    )
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    assert logged["method_loss"] == 0


def test_the_methods_loss_is_per_target_token():
    """fairseq's Trainer divides by the sample size, so the penalty is multiplied by it."""
    model, data = random_model(), sample()
    method = L0(L0Config(penalty=0.02))
    method.attach(model, ["enc-self"])
    model.train()
    losses = {}
    for penalty in (0.0, 0.02):
        method.penalty = penalty
        torch.manual_seed(1)
        losses[penalty], size, logged = TranslationLoss(Task(), 0.1, method)(model, data)
    expected = 0.02 * 8 / (1 + math.exp(-(3.0 - 0.33 * math.log(0.1 / 1.1))))  # 8 heads that start at log_a = 3
    assert float(losses[0.02] - losses[0.0]) / size == pytest.approx(expected, rel=1e-3)
    assert float(logged["method_loss"]) / size == pytest.approx(expected, rel=1e-5)


def test_bf16_autocast_changes_the_loss_by_rounding_only():
    model, data = random_model().train(), sample(40)
    criterion = TranslationLoss(Task(), 0.1, None)
    full = criterion(model, data)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = criterion(model, data)[0]
    assert half.dtype == torch.float32
    assert float(half) == pytest.approx(float(full), rel=0.02)
    half.backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())


def rates(**settings: Any) -> list[float]:
    cfg = ScheduleConfig(**{"peak": 2.0, "warmup": 10, "updates": 100, **settings})
    return [learning_rate(cfg, update) for update in range(100)]


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "constant", "cosine", "linear"])
def test_warm_up_is_linear_and_ends_at_the_peak(schedule):
    found = rates(schedule=schedule)
    assert found[:10] == pytest.approx([2.0 * step / 10 for step in range(1, 11)])
    assert max(found) == pytest.approx(2.0)


def test_inverse_sqrt_is_that_of_vaswani_and_voita():
    found = rates(schedule="inverse_sqrt")
    assert found == pytest.approx([2.0 * 10**0.5 * min(step**-0.5, step * 10**-1.5) for step in range(1, 101)])
    # Voita et al.: 4 * 512^-0.5 * min(step^-0.5, step * 16000^-1.5)
    cfg = ScheduleConfig(schedule="inverse_sqrt", peak=4 * 512**-0.5 * 16000**-0.5, warmup=16000)
    for step in (1, 15999, 16000, 16001, 100_000):
        paper = 4 * 512**-0.5 * min(step**-0.5, step * 16000**-1.5)
        assert learning_rate(cfg, step - 1) == pytest.approx(paper, rel=1e-9)


@pytest.mark.parametrize("final", [0.0, 0.1])
def test_cosine_and_linear_end_at_the_final_rate(final):
    for step in (10, 40, 55, 100):
        done = (step - 10) / 90
        wave = 0.5 * (1 + math.cos(math.pi * done))
        assert rates(schedule="cosine", final=final)[step - 1] == pytest.approx(2 * (final + (1 - final) * wave))
        assert rates(schedule="linear", final=final)[step - 1] == pytest.approx(2 * (1 - (1 - final) * done))
    cfg = ScheduleConfig(schedule="cosine", peak=2.0, warmup=10, updates=100, final=final)
    assert learning_rate(cfg, 150) == pytest.approx(2 * final)


def test_constant_stays_and_no_warm_up_starts_at_the_peak():
    assert rates(schedule="constant")[10:] == [2.0] * 90
    assert rates(schedule="constant", warmup=0) == [2.0] * 100
    assert rates(schedule="linear", warmup=0)[0] == pytest.approx(2.0 * 0.99)


def marked(values: list[float]) -> nn.Parameter:
    gate = nn.Parameter(torch.tensor(values))
    gate.param_group = "gates"
    return gate


def test_gates_have_a_rate_of_their_own_and_no_weight_decay():
    weight, gate = nn.Parameter(torch.tensor([1.0, -2.0])), marked([3.0, -3.0])
    adam = GroupedAdam(AdamConfig(weight_decay=0.5, gate_lr=0.05, lr=[0.0]), [weight, gate])
    adam.set_lr(0.01)
    weight.grad, gate.grad = torch.zeros(2), torch.zeros(2)
    adam.step()
    assert gate.tolist() == [3.0, -3.0]
    assert weight.tolist() == pytest.approx([1 - 0.01 * 0.5, -2 * (1 - 0.01 * 0.5)])

    weight.grad, gate.grad = torch.ones(2), torch.ones(2)
    before = weight.detach().clone(), gate.detach().clone()
    adam = GroupedAdam(AdamConfig(gate_lr=0.05, lr=[0.0]), [weight, gate])
    adam.set_lr(0.01)
    adam.step()  # the first step of Adam is the rate itself
    torch.testing.assert_close(before[0] - weight.detach(), torch.full((2,), 0.01))
    torch.testing.assert_close(before[1] - gate.detach(), torch.full((2,), 0.05))
    adam.set_lr(0.0)
    weight.grad, gate.grad = torch.ones(2), torch.ones(2)
    before = weight.detach().clone(), gate.detach().clone()
    adam.step()
    assert torch.equal(weight.detach(), before[0])
    assert (gate.detach() < before[1]).all()
    assert adam.get_lr() == 0.0  # what is logged is the rate of the weights


def test_weights_move_as_with_torchs_adamw():
    torch.manual_seed(1)
    start = torch.randn(5)
    own, other = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    adam = GroupedAdam(AdamConfig(beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.1, lr=[0.0]), [own])
    twin = torch.optim.AdamW([other], lr=0.02, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)
    for step in range(5):
        adam.set_lr(0.02)
        for parameter in (own, other):
            torch.manual_seed(step)
            parameter.grad = torch.randn(5)
        adam.step()
        twin.step()
    torch.testing.assert_close(own.detach(), other.detach())


def test_beside_muon_adam_has_a_rate_of_its_own():
    moved = {}
    for algorithm, factor in (("muon", 1.0), ("muon", 3.0), ("adam", 3.0)):
        bias, matrix = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, 2))
        matrix.param_group = "matrices"
        optimizer = GroupedAdam(AdamConfig(algorithm=algorithm, adam_factor=factor, lr=[0.0]), [bias, matrix])
        optimizer.set_lr(0.01)
        bias.grad, matrix.grad = torch.ones(2), torch.eye(2)
        optimizer.step()
        moved[algorithm, factor] = -bias.detach(), -matrix.detach()
    for case, rate in ((("muon", 1.0), 0.01), (("muon", 3.0), 0.03), (("adam", 3.0), 0.01)):
        torch.testing.assert_close(moved[case][0], torch.full((2,), rate))  # the first step of Adam is the rate itself
    assert torch.equal(moved["muon", 1.0][1], moved["muon", 3.0][1])


def test_parameters_of_layers_without_heads_do_no_harm():
    empty, gate, weight = nn.Parameter(torch.empty(0, 3)), marked([]), nn.Parameter(torch.ones(1))
    adam = GroupedAdam(AdamConfig(gate_lr=0.1, lr=[0.1]), [empty, gate, weight])
    for parameter in (empty, gate, weight):
        parameter.grad = torch.ones_like(parameter)
    adam.step()
    assert float(weight) < 1
