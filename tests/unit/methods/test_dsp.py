"""Differentiable subset pruning against its formulas (Li, Cotterell & Sachan 2021), written down again here."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch import Tensor, nn

from headlab.attention.heads import KINDS, Head, Layout
from headlab.attention.layer import HeadAttention
from headlab.attention.removal import remove_heads
from headlab.config import DspConfig
from headlab.methods.dsp import DSP, gumbel, hard_top_k, soft_top_k

FULL = Layout(
    {kind: (tuple(range(4)),) * layers for kind, layers in zip(KINDS, (2, 1, 1), strict=True)},
    {kind: (4,) * layers for kind, layers in zip(KINDS, (2, 1, 1), strict=True)},
)
TEMPERATURES = [1e-8, 1e-5, 1e-3, 0.1, 1.0, 30.0, 1000.0]


def perturbed(heads: int, seed: int, spread: float = 1.0) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(heads) * spread + gumbel((heads,))


def picks(r: list[float], k: int, temperature: float) -> list[float]:
    """The paper's iteration in Python's own floats."""
    mask = [0.0] * len(r)
    for _ in range(k):
        top = max(r)
        powers = [math.exp((x - top) / temperature) for x in r]
        p = [power / sum(powers) for power in powers]
        mask = [m + x for m, x in zip(mask, p, strict=True)]
        r = [x + math.log(1 - y) for x, y in zip(r, p, strict=True)]
    return mask


def largest(r: Tensor, k: int) -> set[int]:
    return set(sorted(range(len(r)), key=lambda i: -float(r[i]))[:k])


def dsp(model: nn.Module, w: list[float], target: int, **settings: object) -> DSP:
    """DSP over all 16 heads with given weights."""
    method = DSP(DspConfig(**settings), target)
    method.attach(model, KINDS)
    with torch.no_grad():
        for number, gate in enumerate(method.gates):
            gate.w.copy_(torch.tensor(w[4 * number : 4 * number + 4]))
    return method


SIXTEEN = [0.3 * ((7 * i) % 16) - 2 for i in range(16)]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("spread", [0.0, 0.5, 5.0, 1000.0])
def test_the_relaxed_mask_sums_to_k(temperature, spread):
    for k in (0, 1, 2, 7, 23, 46, 47, 48):
        mask = soft_top_k(perturbed(48, k, spread), k, temperature)
        assert mask.shape == (48,)
        assert float(mask.double().sum()) == pytest.approx(k, rel=1e-5)
        assert float(mask.min()) >= 0


@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("k", [1, 3, 8, 11])
def test_the_relaxed_mask_is_the_papers(temperature, k):
    r = perturbed(12, 3)
    expected = picks(r.tolist(), k, temperature)
    assert soft_top_k(r, k, temperature).tolist() == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("k", [1, 5, 36, 143])
def test_in_the_cold_k_different_heads_are_picked_and_they_are_the_largest(seed, k):
    r = perturbed(144, seed, 0.5)
    mask = soft_top_k(r, k, 1e-8)
    assert set(mask.tolist()) == {0.0, 1.0}
    assert set(mask.nonzero().flatten().tolist()) == largest(r, k)
    assert torch.equal(mask, hard_top_k(r, k))


@pytest.mark.parametrize("temperature", [1e-8, 0.1, 1.0, 10.0])
def test_a_head_that_is_far_ahead_is_picked_once(temperature):
    r = torch.tensor([0.0, 5000.0, -1.0, 1.0, 4000.0])
    mask = soft_top_k(r, 3, temperature)
    assert mask[[1, 4]].tolist() == [1.0, 1.0]
    assert float(mask[[0, 2, 3]].sum()) == pytest.approx(1)


@pytest.mark.parametrize("temperature", [0.4, 1.0, 4.0])
@pytest.mark.parametrize("k", [1, 4, 9])
def test_the_gradient_of_the_relaxed_mask_is_that_of_finite_differences(temperature, k):
    r = perturbed(10, 2).double().requires_grad_()
    weighting = torch.linspace(-1, 2, 10, dtype=torch.float64)
    (soft_top_k(r, k, temperature) * weighting).sum().backward()
    step = 1e-5
    for place in range(10):
        change = torch.zeros(10, dtype=torch.float64)
        change[place] = step
        up, down = ((soft_top_k(r.detach() + s * change, k, temperature) * weighting).sum() for s in (1, -1))
        assert float(r.grad[place]) == pytest.approx(float(up - down) / (2 * step), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("ties", [False, True])
def test_there_is_no_nan_and_no_gradient_beyond_its_bound(temperature, ties):
    for seed in range(10):
        r = perturbed(60, seed, 0.3)
        if ties:  # 24 heads in pairs of equals, the first pair so far ahead that it is picked again and again
            r[1:24:2] = r[0:24:2]
            r[:2] += 40
        r.requires_grad_()
        mask = soft_top_k(r, 20, temperature)
        given = torch.randn(60)
        mask.backward(given)
        assert mask.isfinite().all()
        assert r.grad.isfinite().all()
        assert float(r.grad.abs().max()) <= 10 * float(given.abs().max()) * (1 + 1e-6)


def test_a_gradient_beyond_its_bound_keeps_its_direction():
    r = torch.tensor([1.0, 1.0001, 0.0, -1.0]).requires_grad_()
    given = torch.tensor([1.0, -2.0, 0.0, 0.5])
    soft_top_k(r, 1, 0.001).backward(given)
    # of a softmax of two: p q / t (g_1 - g_2) = 0.2494 * 3 / 0.001 = 748, which is scaled down to 10 * 2
    assert r.grad.tolist() == pytest.approx([20.0, -20.0, 0.0, 0.0], rel=1e-4)


@pytest.mark.parametrize("relaxation", ["soft", "straight_through", "identity"])
@pytest.mark.parametrize("target", [0, 16])
def test_with_no_heads_or_all_there_is_nothing_to_choose(model, relaxation, target):
    mask = dsp(model, SIXTEEN, target, relaxation=relaxation).draw()
    assert mask.tolist() == [float(target > 0)] * 16
    mask.sum().backward()  # a model that is frozen has nothing else to train


def test_straight_through_is_binary_and_has_the_gradient_of_the_relaxed_mask(model):
    gradients, masks = {}, {}
    for relaxation in ("soft", "straight_through"):
        method = dsp(model, SIXTEEN, 5, relaxation=relaxation, start=0.5)
        torch.manual_seed(11)
        masks[relaxation] = method.draw()
        (masks[relaxation] * torch.linspace(-1, 1, 16)).sum().backward()
        gradients[relaxation] = torch.cat([gate.w.grad for gate in method.gates])
    torch.manual_seed(11)
    r = torch.tensor(SIXTEEN) + gumbel((16,))
    assert set(masks["straight_through"].tolist()) == {0.0, 1.0}
    assert set(masks["straight_through"].nonzero().flatten().tolist()) == largest(r, 5)
    assert not torch.equal(masks["soft"], masks["straight_through"])
    assert torch.equal(gradients["soft"], gradients["straight_through"])
    assert float(gradients["soft"].abs().max()) > 0


def test_the_released_codes_straight_through_has_no_noise_and_passes_gradients_on(model):
    method = dsp(model, SIXTEEN, 5, relaxation="identity")
    mask = method.draw()
    assert set(mask.nonzero().flatten().tolist()) == largest(torch.tensor(SIXTEEN), 5)
    assert set(mask.tolist()) == {0.0, 1.0}
    (mask * torch.arange(16)).sum().backward()
    assert torch.cat([gate.w.grad for gate in method.gates]).tolist() == list(range(16))


def test_noise_picks_heads_in_proportion_to_exp_w():
    torch.manual_seed(3)
    w, n = torch.tensor([0.5, 0.3, 0.2]).log(), 40_000
    first = (w + gumbel((n, 3))).argmax(1)
    for head, p in enumerate((0.5, 0.3, 0.2)):
        assert float((first == head).float().mean()) == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / n))


def test_all_layers_share_one_draw_in_each_forward_pass(model):
    method = dsp(model.train(), SIXTEEN, 6)
    torch.manual_seed(1)
    orders = [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 0, 1)]
    passes = [torch.cat([method.gates[place]() for place in order]) for order in orders]
    for mask in passes:
        assert float(mask.detach().sum()) == pytest.approx(6, abs=1e-5)
    torch.manual_seed(1)
    again = [method.draw() for _ in orders]
    for mask, order, drawn in zip(passes, orders, again, strict=True):
        assert torch.equal(mask, torch.cat([drawn[4 * place : 4 * place + 4] for place in order]))
    assert not torch.equal(again[0], again[1])


def test_every_weight_learns_from_a_loss_at_the_end_of_the_model(model):
    method = dsp(model.train(), SIXTEEN, 6, start=1.0)
    x = torch.randn(5, 2, 16)
    for _ in range(2):  # two passes before an update, as with optim.update_freq=2
        sum(layer(x, x if layer.kind == "enc-dec" else None).square().sum() for layer in model).backward()
    assert all(float(gate.w.grad.abs().min()) > 0 for gate in method.gates)


def test_masks_are_float32_under_bf16_autocast(model):
    method = dsp(model.train(), SIXTEEN, 6)
    torch.manual_seed(4)
    expected = method.draw()
    torch.manual_seed(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = method.draw()
        out = method.layers[0](torch.randn(5, 3, 16))
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert method.gates[0].w.grad.dtype == torch.float32


def test_in_evaluation_exactly_the_k_largest_weights_count_and_they_are_kept(model):
    w = [0.5, 2.0, 0.5, -1.0] * 4  # ties: the earlier head first
    method = dsp(model, w, 6)
    model.eval()
    mask = torch.cat([gate() for gate in method.gates])
    wanted = [Head("enc-self", 0, 0), *(Head(k, n, 1) for k, n in LAYERS), Head("enc-self", 0, 2)]
    assert [head for head, m in zip(method.heads(), mask.tolist(), strict=True) if m] == sorted(
        wanted, key=method.heads().index
    )
    assert set(mask.tolist()) == {0.0, 1.0}
    assert set(method.keep(6, FULL)) == set(wanted)
    assert list(method.scores().values()) == pytest.approx(w)
    x = torch.randn(4, 2, 16)
    before = [layer(x, x if layer.kind == "enc-dec" else None) for layer in model]
    remove_heads(model, method.keep(6, FULL), method.factors())
    for layer, out in zip(model, before, strict=True):
        torch.testing.assert_close(layer(x, x if layer.kind == "enc-dec" else None), out, atol=1e-6, rtol=1e-5)


LAYERS = [("enc-self", 0), ("enc-self", 1), ("dec-self", 0), ("enc-dec", 0)]


def test_the_temperature_falls_geometrically_and_stays_at_the_end(model):
    method = DSP(DspConfig(start=0.1, end=1e-8, cooldown=0.5), 3)
    found = []
    for progress in (0.0, 0.125, 0.25, 0.5, 0.75, 1.0):
        method.advance(1, 0, progress)
        found.append(method.temperature)
    assert found == pytest.approx([1e-1, 10**-2.75, 10**-4.5, 1e-8, 1e-8, 1e-8], rel=1e-9)


def test_the_defaults_are_those_of_the_papers_iwslt_setting():
    cfg = DspConfig()
    assert (cfg.lr, cfg.start, cfg.end) == (0.2, 0.1, 1e-8)


def test_weights_start_glorot_uniform_over_layers_and_heads():
    torch.manual_seed(1)
    model = nn.ModuleList([HeadAttention("enc-self", 16, 8) for _ in range(18)])
    method = DSP(DspConfig(), 4)
    method.attach(model, ["enc-self"])
    w = method.weights().detach()
    assert w.shape == (144,)
    assert 0.42 < float(w.abs().max()) <= 0.4804  # sqrt(6 / 26)


def test_layers_without_heads_and_targets_without_heads(model):
    remove_heads(model, FULL.keep([Head("enc-self", 1, 2), Head("enc-dec", 0, 1)], KINDS))
    method = DSP(DspConfig(), 1)
    method.attach(model, KINDS)
    assert list(map(str, method.scores())) == ["enc-self.1.2", "enc-dec.0.1"]
    assert sum(gate().sum().item() for gate in method.gates) == pytest.approx(1)
    with pytest.raises(ValueError, match="no subset of 3 heads among the 2"):
        DSP(DspConfig(), 3).attach(model, KINDS)


@pytest.mark.parametrize("relaxation", ["soft", "straight_through"])
def test_the_heads_that_save_most_loss_are_found(relaxation):
    torch.manual_seed(2)
    model = nn.ModuleList([HeadAttention("enc-self", 16, 8) for _ in range(3)])
    for number, layer in enumerate(model):
        layer.layer = number
    worth = torch.logspace(-3, 0, 24)[torch.randperm(24)]
    method = DSP(DspConfig(relaxation=relaxation, start=1.0), 6)
    method.attach(model.train(), ["enc-self"])
    optimizer = torch.optim.Adam([gate.w for gate in method.gates], lr=method.learning_rate, betas=(0.9, 0.98))
    for update in range(150):
        method.advance(1, update, update / 150)
        mask = torch.cat([gate() for gate in method.gates])
        optimizer.zero_grad()
        ((1 - mask) * worth).sum().backward()
        optimizer.step()
    kept = torch.tensor(list(method.scores().values())).topk(6).indices
    assert float(worth[kept].sum()) > 0.9 * float(worth.topk(6).values.sum())


def test_the_log_tells_temperature_gap_and_how_far_draws_are_from_what_is_kept(model):
    w = [30.0 * i for i in range(16)]
    found = dsp(model, w, 4).log()
    assert found == {"heads_open": 4, "temperature": 0.1, "undecided": 0.0, "gap": 30.0}
    assert "gap" not in dsp(model, w, 16).log()
    equal = dsp(model, [1.0] * 16, 4)
    assert equal.undecided() == pytest.approx(4 * 12 / 16, abs=0.5)  # a draw of 4 of 16 has one of the kept 4
    state = torch.get_rng_state()
    equal.log()
    assert torch.equal(torch.get_rng_state(), state)  # looking draws nothing from training


def test_weights_that_did_not_move_or_decide_are_told(model):
    method = DSP(DspConfig(), 4)
    method.attach(model, KINDS)
    found = method.warnings()
    assert len(found) == 2
    assert "no weight moved" in found[0]
    assert "of 4 heads in a draw" in found[1]
    assert dsp(model, [30.0 * i for i in range(16)], 4).warnings() == []
    nothing = DSP(DspConfig(), 16)
    nothing.attach(model, KINDS)
    assert nothing.warnings() == []


def test_model_and_method_may_go_to_another_process(model):
    method = dsp(model.train(), SIXTEEN, 6)
    other, same = pickle.loads(pickle.dumps((model, method)))
    assert [layer.gate for layer in same.layers] == same.gates
    assert all(any(layer is one for one in other) for layer in same.layers)
    torch.manual_seed(6)
    expected = torch.cat([gate() for gate in method.gates])
    torch.manual_seed(6)
    assert torch.equal(torch.cat([gate() for gate in same.gates]), expected)
