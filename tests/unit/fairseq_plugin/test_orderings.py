"""Head scores from a look at data, on small random models: against finite differences, brute force and sums of 1."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headlab.attention.heads import KINDS, Head, Layout
from headlab.attention.layer import attention_layers
from headlab.config import GradientConfig, LrpConfig
from headlab.fairseq_plugin.passes import DevSet, frozen_loss
from headlab.fairseq_plugin.relevance import network
from headlab.methods.base import Looked
from headlab.methods.confidence import Confidence
from headlab.methods.gradient import Gradient
from headlab.methods.leave_one_out import LeaveOneOut
from headlab.methods.lrp import LRP
from headlab.methods.ordering import recorded
from headlab.methods.relevance import Rule, Walk, watched

from .conftest import random_model


class Factors(nn.Module):
    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.values = values

    def forward(self) -> torch.Tensor:
        return self.values


@pytest.fixture
def model(new_model):
    """A random model over the digits in double precision, so that differences of losses are exact enough."""
    made = new_model(dropout=0.0, attention_dropout=0.0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(1.5) if parameter.dim() > 1 else parameter.add_(torch.randn_like(parameter) * 0.1)
    return made.double()


@pytest.fixture
def loss_fn(model):
    """The loss in double precision throughout, which headlab's own is not."""

    def look(batch: dict[str, Any]) -> Looked:
        features, _ = model.eval()(**batch["net_input"], features_only=True)
        real = batch["target"].ne(1)  # fairseq's padding
        logits = model.decoder.output_layer(features[real])
        return Looked(F.cross_entropy(logits, batch["target"][real], reduction="sum"), int(real.sum()))

    return look


@pytest.fixture
def batches(model, task, optim):
    return DevSet(model, task, optim, "dev", 1).samples


def loss_with(model, head: Head, factor: float, batch: dict[str, Any], loss_fn) -> float:
    """The loss of a batch when the output of one head counts ``factor`` times."""
    (layer,) = [layer for layer in attention_layers(model) if (layer.kind, layer.layer) == (head.kind, head.layer)]
    values = torch.ones(4, dtype=torch.float64)
    values[head.index] = factor
    layer.gate = Factors(values)
    try:
        return float(loss_fn(batch).loss.detach())
    finally:
        layer.gate = None


def one_by_one(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """The sentences of a batch, each as a batch of its own with all its padding."""
    found = []
    for place in range(len(batch["id"])):
        rows = slice(place, place + 1)
        inputs = {key: value[rows] for key, value in batch["net_input"].items()}
        found.append({"net_input": inputs, "target": batch["target"][rows]})
        found[-1]["ntokens"] = int(batch["target"][rows].ne(1).sum())  # 1: fairseq's padding
    return found


@pytest.mark.parametrize("per", ["example", "batch"])
def test_gradients_are_those_of_finite_differences(model, batches, loss_fn, per):
    method = Gradient(GradientConfig(per=per, normalise=False))
    method.attach(model, KINDS)
    method.score(batches, loss_fn)
    units = [one for batch in batches for one in one_by_one(batch)] if per == "example" else batches
    tokens, step = sum(batch["ntokens"] for batch in batches), 1e-5
    for head in (Head("enc-self", 0, 1), Head("enc-self", 1, 3), Head("dec-self", 0, 0), Head("enc-dec", 1, 2)):
        slopes = [
            (loss_with(model, head, 1 + step, one, loss_fn) - loss_with(model, head, 1 - step, one, loss_fn))
            / (2 * step)
            for one in units
        ]
        assert method.scores()[head] == pytest.approx(sum(map(abs, slopes)) / tokens, rel=1e-5)
    assert all(p.grad is None for p in model.parameters())
    assert all(layer.gate is None and not layer.record and not layer.features for layer in attention_layers(model))


def test_the_loss_of_a_run_has_the_same_gradients(model, batches, task, loss_fn):
    found = []
    for one in (loss_fn, frozen_loss(model, task, gradients=True)):
        method = Gradient(GradientConfig())
        method.attach(model, KINDS)
        method.score(batches, one)
        found.append(torch.tensor(list(method.scores().values())))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_each_layer_has_length_one_when_normalised(model, batches, loss_fn):
    plain, normalised = (Gradient(GradientConfig(normalise=flag)) for flag in (False, True))
    for method in (plain, normalised):
        method.attach(model, KINDS)
        method.score(batches, loss_fn)
    for layer in attention_layers(model):
        raw, own = (
            torch.tensor([m.scores()[Head(layer.kind, layer.layer, i)] for i in range(4)]) for m in (plain, normalised)
        )
        torch.testing.assert_close(own, raw / raw.square().sum().sqrt())


def test_in_rounds_the_lowest_go_and_the_rest_is_scored_anew(model, batches, loss_fn):
    method = Gradient(GradientConfig(normalise=False, rounds=4))
    method.attach(model, ["enc-self", "enc-dec"])  # 16 heads: 4 a round
    method.score(batches, loss_fn)
    order = sorted(method.scores(), key=lambda head: method.scores()[head])
    assert sorted(method.scores().values()) == list(range(16))
    gates = {layer.name: torch.ones(4, dtype=torch.float64) for layer in method.layers}
    for round_ in range(4):
        once = Gradient(GradientConfig(normalise=False))
        once.attach(model, ["enc-self", "enc-dec"])
        # the independent way: zero the columns of the output projection of what went before
        kept = {name: value.clone() for name, value in model.state_dict().items()}
        with torch.no_grad():
            for layer in method.layers:
                layer.out_proj.weight.mul_(gates[layer.name].repeat_interleave(layer.head_dim))
        once.score(batches, loss_fn)
        model.load_state_dict(kept)
        left = {head: value for head, value in once.scores().items() if head not in order[: 4 * round_]}
        assert order[4 * round_ : 4 * round_ + 4] == sorted(left, key=lambda head: left[head])[:4]
        for head in order[4 * round_ : 4 * round_ + 4]:
            gates[f"{head.kind}.{head.layer}"][head.index] = 0


def test_leave_one_out_is_the_loss_of_the_model_without_the_head(model, task, optim, batches, loss_fn):
    method, dev = LeaveOneOut(), DevSet(model, task, optim, "dev", 9)
    method.attach(model, ["dec-self"])
    method.score(dev, loss_fn)
    assert dev.passes == method.passes == 9
    tokens = sum(batch["ntokens"] for batch in batches)
    whole = sum(float(loss_fn(batch).loss.detach()) for batch in batches) / tokens
    for head, score in method.scores().items():
        without = sum(loss_with(model, head, 0.0, batch, loss_fn) for batch in batches) / tokens
        assert score == pytest.approx(without - whole, abs=1e-9)


def test_confidence_is_the_mean_of_the_largest_weights_without_eos(model, batches, loss_fn):
    method = Confidence()
    method.attach(model, KINDS)
    method.score(batches, loss_fn)
    sums: dict[Head, list[float]] = {head: [] for head in method.heads()}
    for batch in batches:
        source, target = batch["net_input"]["src_tokens"], batch["net_input"]["prev_output_tokens"]
        with recorded(method.layers, "A"):
            loss_fn(batch)
            for layer in method.layers:
                keys = source if layer.kind != "dec-self" else target
                asking = source if layer.kind == "enc-self" else target
                for s in range(len(source)):
                    for q in range(asking.size(1)):
                        if asking[s, q] == 1 or (layer.kind == "dec-self" and q == 0):  # padding; sees EOS alone
                            continue
                        seen = [k for k in range(keys.size(1)) if keys[s, k] not in (1, 2)]  # fairseq's padding, EOS
                        for i in range(4):
                            best = max(float(layer.features["A"][s, i, q, k]) for k in seen)
                            sums[Head(layer.kind, layer.layer, i)].append(best)
    assert any((batch["net_input"]["src_tokens"] == 1).any() for batch in batches)
    for head, values in sums.items():
        assert method.scores()[head] == pytest.approx(sum(values) / len(values), abs=1e-9)


def relevances(model, rule: Rule, position: int) -> tuple[torch.Tensor, Walk]:
    torch.manual_seed(3)
    source, target = torch.randint(4, 24, (3, 7)), torch.randint(4, 34, (3, 5))
    source[0, :3] = 1  # fairseq's padding, on the left
    net = network(model)
    with torch.no_grad(), recorded(attention_layers(model), "A", "V", "O"), watched(net) as seen:
        model(source, None, target)
        walk = Walk(net, seen, rule)
        return walk.step(position, torch.tensor([5, 9, 20])), walk


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("released", "eps", "tolerance"), [(True, 1e-5, 1e-5), (False, 1e-12, 1e-3)])
def test_relevance_is_conserved(norm, seed, released, eps, tolerance):
    """What starts as 1 at a logit arrives as 1; plain ratios grow to 1e8 on the way, of which eps takes a bit."""
    model = random_model(seed=seed, norm=norm)
    for position in (0, 2, 4):
        arrived, walk = relevances(model, Rule(released, eps), position)
        torch.testing.assert_close(arrived.double(), torch.ones(3, dtype=torch.float64), atol=tolerance, rtol=0)
        assert set(walk.heads) == {layer.name for layer in attention_layers(model)}
        if released:
            assert all((found >= 0).all() for found in walk.heads.values())


def test_relevance_of_a_step_comes_from_what_it_could_see():
    model = random_model()
    _, walk = relevances(model, Rule(True, 1e-5), 0)
    assert all(walk.heads[name].sum() > 0 for name in walk.heads)
    with pytest.raises(IndexError):
        relevances(model, Rule(True, 1e-5), 5)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_layers_without_heads_hand_everything_on(norm):
    layout = Layout.full(2, 3, 4)
    layout = layout.keep([head for head in layout if head.layer != 1], KINDS)
    arrived, _ = relevances(random_model(layout, norm=norm), Rule(True, 1e-5), 3)
    torch.testing.assert_close(arrived, torch.ones(3), atol=1e-5, rtol=0)


@pytest.mark.parametrize("rule", ["paper", "as_released"])
def test_lrp_scores_are_the_mean_share_of_each_head(model, batches, task, rule):
    method = LRP(LrpConfig(rule=rule), network)
    method.attach(model, ["enc-self"])
    method.score(batches, frozen_loss(model, task))
    assert method.warnings() == []
    assert {head.kind for head in method.scores()} == {"enc-self"}
    for layer in range(2):
        shares = [method.scores()[Head("enc-self", layer, i)] for i in range(4)]
        if rule == "as_released":
            assert sum(shares) == pytest.approx(1)
        assert sum(map(abs, shares)) <= 1 + 1e-9


def test_a_head_that_writes_nothing_has_no_relevance_and_no_gradient(model, batches, task, loss_fn):
    (layer,) = [layer for layer in attention_layers(model) if layer.name == "enc-self.1"]
    with torch.no_grad():
        layer.out_proj.weight[:, 8:16] = 0
    for method in (LRP(LrpConfig(), network), Gradient(GradientConfig()), LeaveOneOut()):
        method.attach(model, ["enc-self"])
        method.score(batches, loss_fn)
        scores = method.scores()
        assert scores[Head("enc-self", 1, 1)] == pytest.approx(0, abs=1e-12)
        assert all(value != 0 for head, value in scores.items() if head != Head("enc-self", 1, 1))
