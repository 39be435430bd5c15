"""The Hard Concrete gate against its closed form (Louizos et al. 2018, Voita et al. 2019), and what L0 makes of it."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from headlab.attention.heads import KINDS, Head, Layout
from headlab.attention.layer import HeadAttention
from headlab.attention.removal import remove_heads
from headlab.config import L0Config
from headlab.methods.l0 import L0, HardConcrete

T, LOW, HIGH = 0.33, -0.1, 1.1  # of the released code
FULL = Layout(
    {kind: (tuple(range(4)),) * layers for kind, layers in zip(KINDS, (2, 1, 1), strict=True)},
    {kind: (4,) * layers for kind, layers in zip(KINDS, (2, 1, 1), strict=True)},
)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def below(x: float, log_a: float, temperature: float = T, low: float = LOW, high: float = HIGH) -> float:
    """P(g <= x) of the stretched variable before clipping, 0 <= x <= 1: the closed form of the distribution."""
    return sigmoid(temperature * logit((x - low) / (high - low)) - log_a)


def draws(log_a: float, n: int = 200_000, cfg: L0Config | None = None) -> Tensor:
    torch.manual_seed(1)
    return HardConcrete(torch.full((n,), log_a), cfg or L0Config()).train()().detach()


def gates_of(model: nn.Module, log_a: list[float], cfg: L0Config | None = None, **settings) -> L0:
    """L0 on the 8 heads of enc-self with given gate parameters."""
    method = L0(cfg or L0Config(), **settings)
    method.attach(model, ["enc-self"])
    set_gates(method, log_a)
    return method


def set_gates(method: L0, log_a: list[float]) -> None:
    with torch.no_grad():
        for number, layer in enumerate(method.layers):
            layer.gate.log_a.copy_(torch.tensor(log_a[4 * number : 4 * number + 4]))


def opened(count: int) -> list[float]:
    return [2.0] * count + [-2.0] * (8 - count)


def test_the_constants_are_those_of_the_released_code():
    cfg = L0Config()
    assert (cfg.temperature, cfg.low, cfg.high, cfg.eps) == (0.33, -0.1, 1.1, 1e-6)


@pytest.mark.parametrize("log_a", [-2.4, -1.0, 0.0, 0.7, 2.4])
@pytest.mark.parametrize("cfg", [L0Config(), L0Config(temperature=2 / 3, low=-0.2, high=1.3)], ids=["code", "other"])
def test_draws_have_the_closed_forms_distribution(log_a, cfg):
    g = draws(log_a, cfg=cfg)
    n = len(g)
    shape = (cfg.temperature, cfg.low, cfg.high)
    p_closed, p_open = below(0, log_a, *shape), 1 - below(1, log_a, *shape)
    for found, p in [(float((g == 0).float().mean()), p_closed), (float((g == 1).float().mean()), p_open)]:
        assert found == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / n))
    assert float(g.min()) >= 0
    assert float(g.max()) <= 1
    for x in (0.05, 0.2, 0.5, 0.8, 0.95):
        p = below(x, log_a, *shape)
        assert float((g <= x).float().mean()) == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / n))


@pytest.mark.parametrize("log_a", [-5.0, -2.4, 0.0, 0.3, 2.4, 5.0])
def test_the_probability_of_being_open(log_a):
    found = HardConcrete(torch.tensor([log_a]), L0Config()).open_probability()
    assert float(found) == pytest.approx(sigmoid(log_a - T * math.log(-LOW / HIGH)), rel=1e-6)
    assert float(found) == pytest.approx(1 - below(0, log_a), rel=1e-6)


def test_the_papers_numbers():
    closed = HardConcrete(torch.tensor([-2.4]), L0Config())
    assert round(float(closed.open_probability()), 3) == 0.167  # a head that is firmly off
    assert round(float((draws(2.4) == 1).float().mean()), 2) == 0.83


def test_in_evaluation_there_is_no_noise_and_no_temperature():
    log_a = torch.linspace(-4, 4, 33)
    gate = HardConcrete(log_a, L0Config()).eval()
    expected = [min(max(sigmoid(a) * (HIGH - LOW) + LOW, 0), 1) for a in log_a.tolist()]
    torch.testing.assert_close(gate().detach(), torch.tensor(expected))
    assert torch.equal(gate(), gate())
    assert not torch.equal(gate.train()(), gate())
    assert HardConcrete(torch.tensor([2.4, 3.0]), L0Config()).eval()().tolist() == [1.0, 1.0]
    assert HardConcrete(torch.tensor([-2.4, -3.0]), L0Config()).eval()().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("log_a", [-3.0, -0.5, -1e-3, 1e-3, 0.5, 3.0])
def test_a_head_counts_as_open_where_one_is_likelier_than_zero(model, log_a):
    method = gates_of(model, [log_a] * 8)
    p_closed, p_one = below(0, log_a), 1 - below(1, log_a)
    assert method.open_heads() == (8 if p_one > p_closed else 0)


def test_a_gate_is_drawn_once_per_forward_pass_and_head(model):
    method = gates_of(model, [0.0] * 8)
    gate = method.layers[0].gate.train()
    torch.manual_seed(5)
    first = gate()
    assert first.shape == (4,)
    assert len(set(first.tolist())) > 1
    torch.manual_seed(5)
    assert torch.equal(gate(), first)


def test_gates_are_float32_under_bf16_autocast(model):
    method = gates_of(model, [0.3, -0.2, 0.1, 0.0] * 2)
    layer = method.layers[0].train()
    torch.manual_seed(4)
    expected = layer.gate()
    seen = []
    layer.gate.register_forward_hook(lambda module, args, out: seen.append(out))
    assert ((expected > 0) & (expected < 1)).any()
    x = torch.randn(5, 3, 16)
    torch.manual_seed(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
        penalty = method.loss(7)
    assert out.dtype == torch.bfloat16
    assert seen[0].dtype == penalty.dtype == torch.float32
    assert torch.equal(seen[0], expected)
    out.float().sum().backward()
    assert layer.gate.log_a.grad.dtype == torch.float32
    assert layer.gate.log_a.grad.abs().max() > 0


def test_the_gradient_of_a_draw_is_that_of_the_stretched_sigmoid():
    gate = HardConcrete(torch.tensor([0.2, -0.4, 0.1]), L0Config()).train()
    torch.manual_seed(2)
    g = gate()
    g.sum().backward()
    for value, slope in zip(g.tolist(), gate.log_a.grad.tolist(), strict=True):
        s = (value - LOW) / (HIGH - LOW)
        expected = (HIGH - LOW) * s * (1 - s) / T if 0 < value < 1 else 0.0
        assert slope == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_loss_is_lambda_times_the_expected_number_of_open_heads(model):
    log_a = [-3.0, -2.4, -1.0, 0.0, 0.5, 1.0, 2.4, 4.0]
    method = gates_of(model, log_a, L0Config(penalty=0.02))
    expected = 0.02 * sum(sigmoid(a - T * math.log(-LOW / HIGH)) for a in log_a)
    assert float(method.loss(1)) == pytest.approx(expected, rel=1e-6)
    assert float(method.loss(4096)) == pytest.approx(expected, rel=1e-6)  # per target token already
    method.loss(1).backward()
    for number, layer in enumerate(method.layers):
        for place, slope in enumerate(layer.gate.log_a.grad.tolist()):
            p = sigmoid(log_a[4 * number + place] - T * math.log(-LOW / HIGH))
            assert slope == pytest.approx(0.02 * p * (1 - p), rel=1e-4)


def test_init_paper_is_glorot_uniform_up_to_061_for_8_heads():
    values = []
    for seed in range(200):
        torch.manual_seed(seed)
        layer_model = _wide_model()
        method = L0(L0Config(init="paper"))
        method.attach(layer_model, ["enc-self"])
        values.append(method.log_a())
    found = torch.cat(values)
    bound = 0.6124  # sqrt(6 / 16)
    assert 0.6 < float(found.max()) <= bound
    assert -bound <= float(found.min()) < -0.6
    assert float(found.mean()) == pytest.approx(0, abs=0.05)
    assert float(found.std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)


def _wide_model() -> nn.Module:
    return nn.ModuleList([HeadAttention("enc-self", 16, 8)])


def test_an_open_start_is_the_identity_in_evaluation(model):
    x = torch.randn(6, 2, 16)
    before = [layer.eval()(x, x if layer.kind == "enc-dec" else None) for layer in model]
    method = L0(L0Config(init="open"))
    method.attach(model, KINDS)
    assert method.open_heads() == 16
    for layer, wanted in zip(model, before, strict=True):
        assert torch.equal(layer.eval()(x, x if layer.kind == "enc-dec" else None), wanted)


def test_gates_are_put_on_the_layers_of_the_scope_alone(model):
    L0(L0Config()).attach(model, ["dec-self"])
    assert [layer.gate is not None for layer in model] == [layer.kind == "dec-self" for layer in model]


def test_gates_go_on_layers_without_heads(model):
    remove_heads(model, FULL.keep([Head("enc-self", 1, 2)], ["enc-self"]))
    for init in ("open", "paper"):
        method = L0(L0Config(init=init, penalty=0.5))
        method.attach(model, ["enc-self"])
        assert list(map(str, method.scores())) == ["enc-self.1.2"]
        assert float(method.loss(1)) > 0


def test_scores_are_log_a_and_the_largest_are_kept(model):
    log_a = [0.5, -1.0, 3.0, -2.0, 0.4, -0.5, -3.0, 2.0]
    method = gates_of(model, log_a)
    assert list(method.scores().values()) == pytest.approx(log_a)
    assert set(method.keep(3, FULL).within(["enc-self"])) == {
        Head("enc-self", 0, 2), Head("enc-self", 1, 3), Head("enc-self", 0, 0),
    }  # fmt: skip


def test_folded_factors_are_the_evaluation_gates_and_whole_ones_stay_away(model):
    log_a = [0.5, -1.0, 3.0, -2.0, 0.4, -0.5, -3.0, 2.0]
    method = gates_of(model, log_a, L0Config(fold="gate"))
    for layer in method.layers:
        layer.train()
    expected = [min(max(sigmoid(a) * (HIGH - LOW) + LOW, 0), 1) for a in log_a]
    assert list(method.factors().values()) == pytest.approx(expected)
    assert all(layer.gate.training for layer in method.layers)
    assert gates_of(model, log_a, L0Config(fold="one")).factors() == {}


TARGETS = [6, 3, 0]
UPDATES = 20


def goals(method: L0) -> list[float]:
    return [method.goal_at(update, 8) for update in range(len(TARGETS) * UPDATES)]


def test_the_goal_falls_from_all_heads_to_each_target_in_its_turn():
    found = goals(L0(L0Config(), TARGETS, UPDATES))
    assert found[0] == 8
    assert all(later <= earlier for earlier, later in pairwise(found))
    for place, target in enumerate(TARGETS):
        span = found[place * UPDATES : (place + 1) * UPDATES]
        assert span[-1] == target
        assert min(span) == target
        assert sum(goal > target for goal in span) >= UPDATES / 4  # it glides: a jump would lose more heads than meant
        assert sum(goal == target for goal in span) >= UPDATES / 4  # and gates get time to settle


def test_lambda_rises_with_too_many_open_heads_and_falls_with_too_few(model):
    def after(count: int, updates: int = 5) -> float:
        method = gates_of(model, opened(count), targets=[4], updates_per_target=UPDATES)
        for update in range(UPDATES, UPDATES + updates):  # the goal is 4 by then
            method.advance(1, update, 1.0)
        return method.penalty

    start = L0(L0Config(), [4], UPDATES).penalty
    assert after(8) >= after(6) > start > after(2) >= after(0) > 0
    assert after(8, 10) > after(8, 5)
    assert after(4) == pytest.approx(start, rel=0.05)


def test_a_fixed_penalty_is_not_steered(model):
    method = gates_of(model, opened(8), L0Config(penalty=0.03))
    for update in range(50):
        method.advance(1, update, update / 50)
    assert method.penalty == 0.03
    assert "goal" not in method.log()


def test_steering_reaches_every_target_on_a_toy_of_48_heads():
    """Heads that each save a fixed loss, from 0.0003 to 0.3 nats: the cheap ones have to close, one by one."""
    torch.manual_seed(4)
    targets, per_target = [32, 16, 8, 2], 80
    model = nn.ModuleList([HeadAttention("enc-self", 16, 8) for _ in range(6)])
    for number, layer in enumerate(model):
        layer.layer = number
    worth = torch.logspace(-3.5, -0.5, 48)[torch.randperm(48)].view(6, 8)
    method = L0(L0Config(), targets, per_target)
    method.attach(model, ["enc-self"])
    optimizer = torch.optim.Adam([layer.gate.log_a for layer in model], lr=method.cfg.lr, betas=(0.9, 0.98))
    open_at = {}
    for update in range(len(targets) * per_target):
        method.advance(1, update, 0)
        cost = sum(((1 - layer.gate.train()()) * w).sum() for layer, w in zip(model, worth, strict=True))
        optimizer.zero_grad()
        (cost + method.loss(1)).backward()
        optimizer.step()
        if (update + 1) % per_target == 0:
            open_at[targets[update // per_target]] = method.open_heads()
    for target, found in open_at.items():
        assert abs(found - target) <= max(2, target / 10), open_at
    kept = torch.tensor(list(method.scores().values())).topk(8).indices
    best = worth.flatten().topk(12).indices
    assert set(kept.tolist()) <= set(best.tolist())


def test_lambda_survives_a_restart(model):
    method = gates_of(model, opened(8), targets=[4], updates_per_target=UPDATES)
    for update in range(10):
        method.advance(1, update, 0)
    again = L0(L0Config(), [4], UPDATES)
    again.attach(model, ["enc-self"])
    again.load_state_dict(method.state_dict())
    set_gates(method, opened(8))
    set_gates(again, opened(8))
    for update in range(10, 15):
        method.advance(1, update, 0)
        again.advance(1, update, 0)
    assert again.penalty == method.penalty
    assert again.goal == method.goal


def test_the_log_tells_open_heads_expectation_and_undecided_gates(model):
    log_a = [3.0, 2.5, 1.0, 0.1, -0.1, -1.0, -2.5, -3.0]
    found = gates_of(model, log_a, L0Config(penalty=0.02)).log()
    assert found["heads_open"] == 4
    assert found["expected_l0"] == pytest.approx(sum(1 - below(0, a) for a in log_a), rel=1e-5)
    assert found["undecided"] == 4  # |log_a| < 2.4
    assert found["lambda"] == 0.02


def test_gates_that_did_not_move_or_decide_are_told(model):
    assert any("no gate moved" in line for line in gates_of(model, [3.0] * 8).warnings())
    assert any("8 of 8 gates are undecided" in line for line in gates_of(model, [1.0] * 8).warnings())
    assert gates_of(model, [-3.0] * 4 + [3.0] * 4).warnings() == []


def test_rising_targets_are_refused(model):
    with pytest.raises(ValueError, match="must fall"):
        L0(L0Config(), [2, 4], 10).attach(model, ["enc-self"])
