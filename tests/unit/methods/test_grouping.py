"""Groups from Gram matrices against the direct computation on feature maps, scikit-learn, and cases done by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score
from torch import Tensor
from torch.nn import functional as F

from headlab.methods.grouping import (
    constraint,
    cosines,
    distances,
    flat,
    gram,
    kmeans,
    matched,
    nearest,
    seeds,
    structure,
    to_centres,
)


def features(layers: int = 3, heads: int = 8, numbers: int = 60, seed: int = 1) -> Tensor:
    """Feature maps [layers, heads, numbers] in two or three loose clusters."""
    draw = torch.Generator().manual_seed(seed)
    middles = 2 * torch.randn(layers, 3, numbers, generator=draw)
    member = torch.randint(3, (layers, heads), generator=draw)
    noise = torch.randn(layers, heads, numbers, generator=draw)
    return middles.gather(1, member[:, :, None].expand(-1, -1, numbers)) + noise


def grams_of(maps: Tensor) -> Tensor:
    return torch.stack([gram(one) for one in maps])


def direct(maps: Tensor, found: Tensor, groups: int, alpha: float, beta: float) -> Tensor:
    """The constraint of one layer, written out on its feature maps [heads, numbers]."""
    centres = [maps[found == g].mean(0) for g in range(groups)]
    pull = sum(F.cosine_similarity(one, centres[g], dim=0) for one, g in zip(maps, found.tolist(), strict=True))
    loss = -alpha / len(maps) * pull
    for g, h in itertools.combinations(range(groups), 2):
        loss = loss + beta / (groups * (groups - 1) / 2) * F.cosine_similarity(centres[g], centres[h], dim=0)
    return loss


def test_feature_maps_are_flattened_head_by_head_without_padding():
    maps = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).view(2, 3, 4, 5)
    real = torch.tensor([[True, True, True, True], [True, False, False, True]])
    rows = flat(maps, real)
    for head in range(3):
        kept = torch.cat([maps[0, head], maps[1, head][[0, 3]]]).flatten()
        assert float(rows[head].square().sum()) == float(kept.square().sum())
    assert torch.equal(flat(maps, None)[1], torch.cat([maps[0, 1], maps[1, 1]]).flatten())


@pytest.mark.parametrize("groups", [1, 2, 3, 8])
def test_the_constraint_is_that_of_the_flattened_feature_maps(groups):
    maps = features().requires_grad_()
    grams = grams_of(maps)
    found = kmeans(grams, groups)
    loss = constraint(grams, found, groups, alpha=0.7, beta=0.3)
    wanted = torch.stack([direct(one, f, groups, 0.7, 0.3) for one, f in zip(maps, found, strict=True)])
    assert torch.allclose(loss, wanted, atol=1e-5)
    (mine,) = torch.autograd.grad(loss.sum(), maps, retain_graph=True)
    (other,) = torch.autograd.grad(wanted.sum(), maps)
    assert torch.allclose(mine, other, atol=1e-6)
    assert groups == 8 or float(mine.abs().max()) > 1e-4


def test_a_case_done_by_hand():
    # two pairs at right angles in the plane, each pair 60 degrees apart: every head is 30 degrees from its centre
    angles = torch.tensor([-30.0, 30.0, 60.0, 120.0]).deg2rad()
    grams = grams_of(torch.stack([angles.cos(), angles.sin()], 1)[None])
    found = torch.tensor([[0, 0, 1, 1]])
    assert float(constraint(grams, found, 2, 1.0, 0.0)) == pytest.approx(-math.cos(math.radians(30)), abs=1e-6)
    assert float(constraint(grams, found, 2, 0.0, 1.0)) == pytest.approx(math.cos(math.radians(90)), abs=1e-6)
    assert float(cosines(grams)[0, 1, 2]) == pytest.approx(math.cos(math.radians(30)), abs=1e-6)


def test_one_group_has_no_diversity_and_a_group_for_each_head_no_pull():
    grams = grams_of(features())
    one = torch.zeros(3, 8, dtype=torch.long)
    assert torch.equal(constraint(grams, one, 1, 0.5, 0.0), constraint(grams, one, 1, 0.5, 9.0))
    each = torch.arange(8).expand(3, -1)
    assert torch.allclose(constraint(grams, each, 8, 0.5, 0.0), torch.tensor(-0.5))


def test_the_constraint_pulls_groups_together_and_pushes_them_apart():
    maps = features(seed=2).requires_grad_()
    found = kmeans(grams_of(maps), 2)
    before = structure(grams_of(maps).detach(), found)
    for _ in range(30):
        (gradient,) = torch.autograd.grad(constraint(grams_of(maps), found, 2, 0.5, 0.5).sum(), maps)
        maps = (maps - 20 * gradient).detach().requires_grad_()
    after = structure(grams_of(maps).detach(), found)
    assert (after["within_cos"] > before["within_cos"] + 0.05).all()
    assert (after["between_cos"] < before["between_cos"] - 0.05).all()
    assert (after["dunn"] > before["dunn"]).all()


def test_the_products_stay_in_full_precision_under_autocast():
    rows = torch.randn(8, 3000, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gram(rows)
    assert torch.allclose(found, (rows.double() @ rows.double().t()).float(), rtol=1e-5, atol=1e-3)


def partition(labels) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(np.asarray(labels) == g).tolist()) for g in set(np.asarray(labels).tolist())}


@pytest.mark.parametrize("groups", [2, 3, 4])
@pytest.mark.parametrize("seed", range(6))
def test_groups_are_those_of_scikit_learn_from_the_same_start(groups, seed):
    maps = features(seed=seed)
    start = seeds(grams_of(maps).double(), groups)
    found = kmeans(grams_of(maps), groups)
    for one, first, mine in zip(maps, start, found, strict=True):
        other = KMeans(groups, init=one[first].numpy(), n_init=1, tol=0, max_iter=50).fit(one.numpy())
        assert mine.tolist() == other.labels_.tolist()


def test_another_start_is_taken_as_given():
    maps = features(layers=1, seed=4)
    for start in ([0, 1], [6, 3]):
        found = kmeans(grams_of(maps), 2, torch.tensor([start]))
        other = KMeans(2, init=maps[0][start].numpy(), n_init=1, tol=0).fit(maps[0].numpy())
        assert found[0].tolist() == other.labels_.tolist()


def test_seeds_are_far_from_each_other():
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [10.0, 0.0], [0.0, 4.0], [9.0, 0.0]])
    # mean (4, 0.8): head 2 is farthest; from it head 3 is (sqrt 116); then head 0 (4 from head 3, head 1 is sqrt 17)
    assert seeds(grams_of(points[None]), 3).tolist() == [[2, 3, 1]]
    same = torch.ones(4, 3)
    assert sorted(seeds(grams_of(same[None]), 4)[0].tolist()) == [0, 1, 2, 3]


def test_no_group_is_empty():
    twins = torch.tensor([[1.0, 0.0]] * 6 + [[5.0, 0.0], [5.0, 1.0]])
    for groups in range(1, 9):
        found = kmeans(grams_of(twins[None]), groups)
        assert sorted(set(found[0].tolist())) == list(range(groups))
    assert sorted(set(kmeans(torch.zeros(1, 4, 4), 3)[0].tolist())) == [0, 1, 2]


def test_groups_do_not_depend_on_chance():
    grams = grams_of(features())
    first = kmeans(grams, 3)
    torch.manual_seed(99)
    assert torch.equal(kmeans(grams, 3), first)


def test_distances_to_centres():
    maps = features()
    found = kmeans(grams_of(maps), 3)
    away = to_centres(grams_of(maps), found, 3)
    for layer, group in itertools.product(range(3), range(3)):
        centre = maps[layer][found[layer] == group].mean(0)
        assert torch.allclose(away[layer, :, group], (maps[layer] - centre).square().sum(1), rtol=1e-4, atol=1e-3)


def test_the_nearest_to_a_centre_is_a_member_and_of_a_pair_the_earlier():
    points = torch.tensor([[0.0, 1.0], [9.0, 0.3], [0.0, -1.0], [9.0, 0.1], [9.0, -0.6], [9.1, 0.0]])
    found = torch.tensor([[0, 1, 0, 1, 1, 1]])
    # the centre of the four is (9.025, -0.05): head 5 is 0.09 from it, head 3 is 0.15
    assert nearest(grams_of(points[None]), found, 2).tolist() == [[0, 5]]
    for scale in (1e-3, 1.0, 1e3):  # whatever rounding does to two equal distances
        for seed in range(20):
            pair = scale * torch.randn(2, 50, generator=torch.Generator().manual_seed(seed))
            assert nearest(grams_of(pair[None]), torch.zeros(1, 2, dtype=torch.long), 1).tolist() == [[0]]


def test_silhouette_and_dunn_index():
    maps = features(seed=3)
    found = kmeans(grams_of(maps), 3)
    measured = structure(grams_of(maps), found)
    for layer in range(3):
        labels = found[layer].numpy()
        wanted = silhouette_score(maps[layer].numpy(), labels)
        assert float(measured["silhouette"][layer]) == pytest.approx(wanted, abs=1e-4)
        apart = torch.cdist(maps[layer], maps[layer])
        pairs = list(itertools.combinations(range(8), 2))
        within = max(float(apart[i, j]) for i, j in pairs if labels[i] == labels[j])
        between = min(float(apart[i, j]) for i, j in pairs if labels[i] != labels[j])
        assert float(measured["dunn"][layer]) == pytest.approx(between / within, rel=1e-4)
        alike = F.cosine_similarity(maps[layer][:, None], maps[layer][None], dim=2)
        inside = [float(alike[i, j]) for i, j in pairs if labels[i] == labels[j]]
        assert float(measured["within_cos"][layer]) == pytest.approx(np.mean(inside), abs=1e-4)
    assert torch.allclose(distances(grams_of(maps))[0], torch.cdist(maps[0], maps[0]), atol=1e-2)


def test_measures_with_nothing_to_compare_are_nan():
    grams = grams_of(features(layers=1))
    one = structure(grams, torch.zeros(1, 8, dtype=torch.long))
    each = structure(grams, torch.arange(8)[None])
    assert [key for key, value in one.items() if value.isnan()] == ["between_cos", "silhouette", "dunn"]
    assert [key for key, value in each.items() if value.isnan()] == ["within_cos", "dunn"]


@pytest.mark.parametrize(
    ("reference", "groups", "names"),
    [
        ([0, 0, 1, 1], [1, 1, 0, 0], {0: 1, 1: 0}),
        ([0, 0, 0, 1], [1, 1, 0, 0], {1: 0, 0: 1}),  # the overlap of two heads is settled first
        ([0, 1, 2, 2], [2, 0, 1, 1], {2: 0, 0: 1, 1: 2}),
        ([0, 0, 1, 1], [0, 1, 0, 1], {0: 0, 1: 1}),  # all overlaps equal: lower numbers
        ([0, 0, 0], [0, 0, 0], {0: 0}),
    ],
)
def test_groups_are_matched_by_the_heads_they_share(reference, groups, names):
    assert matched(reference, groups) == names
