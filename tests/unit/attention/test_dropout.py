"""Dropout: rate, scale, independence, repeatability and gradient, against what dropout is defined to be."""

import math

import pytest
import torch

from headlab.attention.dropout import Dropout, dropout

SIGMAS = 5  # a false alarm in a million


def dropped(p: float, *shape: int) -> torch.Tensor:
    """1 where an element is dropped."""
    return (dropout(torch.ones(shape), p, True) == 0).float()


@pytest.mark.parametrize("p", [0.01, 0.1, 0.3, 0.5, 0.9])
def test_the_rate_is_p(p):
    torch.manual_seed(1)
    n = 1_000_000
    assert float(dropped(p, n).mean()) == pytest.approx(p, abs=SIGMAS * math.sqrt(p * (1 - p) / n) + 1 / 65536)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_what_stays_is_scaled_so_that_the_mean_is_kept(p):
    torch.manual_seed(2)
    x = torch.rand(1000, 1000) + 0.5
    y = dropout(x, p, True)
    stays = y != 0
    torch.testing.assert_close(y[stays], x[stays] / (1 - p), rtol=1e-4, atol=0)
    sigma = math.sqrt(p / (1 - p)) * float(x.pow(2).mean().sqrt()) / 1000
    assert float(y.mean()) == pytest.approx(float(x.mean()), abs=SIGMAS * sigma)


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 8, 64])
def test_neighbouring_elements_are_dropped_independently(lag):
    torch.manual_seed(3)
    p, n = 0.3, 400_000
    mask = dropped(p, n) - p
    covariance = float((mask[:-lag] * mask[lag:]).mean()) / (p * (1 - p))
    assert abs(covariance) < SIGMAS / math.sqrt(n)


def test_two_masks_are_independent():
    torch.manual_seed(4)
    p, n = 0.3, 400_000
    first, second = dropped(p, n) - p, dropped(p, n) - p
    assert abs(float((first * second).mean()) / (p * (1 - p))) < SIGMAS / math.sqrt(n)


def test_every_place_is_dropped_at_the_same_rate():
    torch.manual_seed(5)
    p, times = 0.25, 4000
    rates = torch.stack([dropped(p, 7, 3) for _ in range(times)]).mean(0)
    assert rates.sub(p).abs().max() < SIGMAS * math.sqrt(p * (1 - p) / times)


def test_the_seed_of_torch_repeats_a_mask():
    x = torch.randn(30, 17)
    torch.manual_seed(6)
    first, second = dropout(x, 0.4, True), dropout(x, 0.4, True)
    torch.manual_seed(6)
    assert torch.equal(dropout(x, 0.4, True), first)
    assert not torch.equal(first, second)


def test_the_gradient_goes_where_the_value_went():
    torch.manual_seed(7)
    x = torch.randn(40, 11, requires_grad=True)
    y = dropout(x, 0.3, True)
    direction = torch.randn_like(y)
    y.backward(direction)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, direction * y.detach() / x.detach())


@pytest.mark.parametrize("shape", [(0,), (1,), (5,), (3, 1, 7), ()])
def test_any_shape_will_do(shape):
    assert dropout(torch.ones(shape), 0.5, True).shape == shape


def test_a_transposed_tensor_keeps_its_places():
    torch.manual_seed(8)
    x = (torch.arange(600.0) + 1).view(20, 30).t()
    y = dropout(x, 0.5, True)
    assert set((y / x).unique().tolist()) == {0.0, 2.0}


def test_nothing_happens_in_evaluation_or_at_rate_0():
    x = torch.randn(5)
    module = Dropout(0.5)
    assert torch.equal(module.eval()(x), x)
    assert torch.equal(dropout(x, 0.0, True), x)
    torch.manual_seed(9)
    assert not torch.equal(module.train()(torch.ones(100)), torch.ones(100))


def test_half_precision_stays_half_precision():
    y = dropout(torch.ones(100, dtype=torch.bfloat16), 0.5, True)
    assert y.dtype == torch.bfloat16
    assert set(y.unique().tolist()) == {0.0, 2.0}
