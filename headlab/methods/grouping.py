"""Groups of the heads of a layer, from the Gram matrix of their feature maps alone.

F_i is what one head did in a batch (values, weights or outputs), flattened to one long vector; of the k heads of a
layer only the k x k products <F_i, F_j> are needed. A centre is a mean of members, c_g = sum_i W_ig F_i with
W_ig = 1/n_g for the members of group g and 0 for others, so that

    <F_i, c_g> = (G W)_ig        <c_g, c_h> = (W^T G W)_gh        |F_i - c_g|^2 = G_ii - 2 (G W)_ig + (W^T G W)_gg

All functions take the layers of one number of heads together: Gram matrices (layers, heads, heads), groups
(layers, heads) numbered from 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

#: Most rounds of k-means; eight heads settle in three or four.
ROUNDS = 20
_TINY = 1e-12


def flat(features: Tensor, real: Tensor | None) -> Tensor:
    """One float32 row per head, (heads, numbers), from features (sentences, heads, positions, width).

    ``real`` (sentences, positions) is false at padding, which counts as 0.
    """
    if real is not None:
        features = features * real[:, None, :, None].to(features.dtype)
    return features.transpose(0, 1).reshape(features.size(1), -1).float()


def gram(rows: Tensor) -> Tensor:
    """Products of all pairs of rows, (heads, heads), in full precision also under autocast."""
    with torch.autocast(rows.device.type, enabled=False):
        return rows @ rows.t()


def distances(grams: Tensor) -> Tensor:
    """Euclidean distances between heads, (layers, heads, heads)."""
    squares = grams.diagonal(dim1=1, dim2=2)
    return (squares[:, :, None] + squares[:, None, :] - 2 * grams).clamp_min(0).sqrt()


def seeds(grams: Tensor, groups: int) -> Tensor:
    """The heads that k-means starts from, (layers, groups): farthest first, so that nothing is left to chance.

    The first is the head farthest from the mean of all, each further one the head farthest from its nearest seed;
    of equal ones the earlier head.
    """
    apart = distances(grams)
    from_mean = grams.diagonal(dim1=1, dim2=2) - 2 * grams.mean(2)
    chosen = [from_mean.argmax(1)]
    while len(chosen) < groups:
        nearest = apart.gather(2, torch.stack(chosen, 1)[:, None, :].expand(-1, apart.size(1), -1)).amin(2)
        nearest.scatter_(1, torch.stack(chosen, 1), -1.0)  # no head twice, also where heads are equal
        chosen.append(nearest.argmax(1))
    return torch.stack(chosen, 1)


def kmeans(grams: Tensor, groups: int, start: Tensor | None = None) -> Tensor:
    """Lloyd's algorithm with Euclidean distances: the group of every head, (layers, heads).

    Starts from the heads ``start`` (layers, groups), by default :func:`seeds`; ends when no head moves, at the latest
    after ``ROUNDS``. A head that is as near to two centres joins the group of the lower number. A group left without
    members takes the head farthest from its own centre, out of a group that has others. Runs in float64 on the CPU:
    these matrices are too small for a GPU to gain by.
    """
    grams = grams.detach().double().cpu()
    start = seeds(grams, groups) if start is None else start.cpu()
    apart = distances(grams)
    squared = apart.gather(2, start[:, None, :].expand(-1, apart.size(1), -1)).square()
    found = _refilled(squared.argmin(2), squared)
    for _ in range(ROUNDS):
        squared = to_centres(grams, found, groups)
        moved = _refilled(squared.argmin(2), squared)
        if torch.equal(moved, found):
            break
        found = moved
    return found


def _refilled(found: Tensor, squared: Tensor) -> Tensor:
    """``found`` with a member in every group; ``squared`` distances to centres, (layers, heads, groups)."""
    groups = squared.size(2)
    while True:
        counts = F.one_hot(found, groups).sum(1)
        empty = (counts == 0).nonzero()
        if not len(empty):
            return found
        layer, group = empty[0].tolist()
        own = squared[layer].gather(1, found[layer][:, None])[:, 0]
        own = own.masked_fill(counts[layer][found[layer]] < 2, -1.0)  # the last member of a group stays
        found[layer, own.argmax()] = group


def shares(found: Tensor, groups: int, like: Tensor) -> Tensor:
    """W of the module's text, (layers, heads, groups)."""
    members = F.one_hot(found, groups).to(like)
    return members / members.sum(1, keepdim=True).clamp_min(1)


def to_centres(grams: Tensor, found: Tensor, groups: int) -> Tensor:
    """Squared distance of every head to every centre, (layers, heads, groups)."""
    w = shares(found, groups, grams)
    products = grams @ w
    centres = (w.transpose(1, 2) @ products).diagonal(dim1=1, dim2=2)
    return grams.diagonal(dim1=1, dim2=2)[:, :, None] - 2 * products + centres[:, None, :]


def nearest(grams: Tensor, found: Tensor, groups: int) -> Tensor:
    """In every group the member nearest to the centre, (layers, groups); of equally near ones the earlier head.

    The two heads of a pair are always equally near: distances that differ by rounding count as equal.
    """
    away = to_centres(grams, found, groups)
    away = away.masked_fill(shares(found, groups, away) == 0, torch.inf)  # members alone can be
    rounding = 1e-6 * grams.diagonal(dim1=1, dim2=2).amax(1)
    return (away <= away.amin(1, keepdim=True) + rounding[:, None, None]).int().argmax(1)


def constraint(grams: Tensor, found: Tensor, groups: int, alpha: float, beta: float) -> Tensor:
    """The group constraint of Ni et al. 2023, form 4B, of every layer, (layers,); differentiable in ``grams``.

    -(alpha / k) sum_i cos(F_i, c_group(i)) + beta / (C (C - 1) / 2) sum_{g<h} cos(c_g, c_h)

    The first term pulls the heads of a group together, the second pushes centres apart; with one group it is 0.
    (The paper prints the opposite sign; this is that of the released code, and of what the paper says it does.)
    """
    w = shares(found, groups, grams)
    products = grams @ w
    centres = w.transpose(1, 2) @ products
    length = centres.diagonal(dim1=1, dim2=2).clamp_min(_TINY).sqrt()
    own = products.gather(2, found[:, :, None])[:, :, 0]
    lengths = grams.diagonal(dim1=1, dim2=2).clamp_min(_TINY).sqrt() * length.gather(1, found)
    loss = -alpha * (own / lengths).mean(1)
    if groups > 1:
        cosines = centres / (length[:, :, None] * length[:, None, :])
        upper = torch.triu(torch.ones_like(cosines[0]), 1)
        loss = loss + beta * (cosines * upper).sum((1, 2)) / upper.sum()
    return loss


def cosines(grams: Tensor) -> Tensor:
    """Cosine similarity of every two heads, (layers, heads, heads)."""
    lengths = grams.diagonal(dim1=1, dim2=2).clamp_min(_TINY).sqrt()
    return grams / (lengths[:, :, None] * lengths[:, None, :])


def structure(grams: Tensor, found: Tensor) -> dict[str, Tensor]:
    """How well the groups are set apart, one number per layer; NaN where a measure has nothing to compare.

    ``within_cos`` and ``between_cos``: mean cosine of two heads of one group and of different groups.
    ``silhouette`` (Rousseeuw 1987): mean of (b - a) / max(a, b) with a the mean distance to a head's own group and b
    to the nearest other one, 0 for a head alone in its group; -1 to 1.
    ``dunn`` (Dunn 1974): smallest distance between groups over the largest within one.
    """
    grams = grams.double()
    heads = grams.size(1)
    apart, alike = distances(grams), cosines(grams)
    same = found[:, :, None] == found[:, None, :]
    pair = ~torch.eye(heads, dtype=torch.bool, device=grams.device)
    inside, across = same & pair, ~same
    members = F.one_hot(found, int(found.max()) + 1).to(apart)
    counts = members.sum(1)
    to_group = apart @ members
    own = members.bool()
    a = to_group[own].view_as(found) / (counts.gather(1, found) - 1)
    b = (to_group / counts[:, None, :]).masked_fill(own | (counts[:, None, :] == 0), torch.inf).amin(2)
    alone = counts.gather(1, found) == 1
    silhouette = torch.where(alone, 0.0, (b - a) / torch.maximum(a, b)).mean(1)
    several = (counts > 0).sum(1) > 1
    widest = apart.masked_fill(~inside, 0).amax((1, 2))
    gap = apart.masked_fill(~across, torch.inf).amin((1, 2))
    return {
        "within_cos": (alike * inside).sum((1, 2)) / inside.sum((1, 2)),
        "between_cos": (alike * across).sum((1, 2)) / across.sum((1, 2)),
        "silhouette": torch.where(several, silhouette, torch.nan),
        "dunn": torch.where(several & (widest > 0), gap / widest, torch.nan),
    }


def matched(reference: Sequence[int], groups: Sequence[int]) -> dict[int, int]:
    """Which group of ``reference`` each group is, since k-means numbers them arbitrarily.

    The two groups that share most heads are taken for one another first, then the next two among the rest, and so
    on; of equal overlaps that of the lower numbers, in ``reference`` first. Both are of one layer and give every
    head's group.
    """
    numbers = range(max(*reference, *groups) + 1)
    overlap = {
        (r, g): sum(a == r and b == g for a, b in zip(reference, groups, strict=True)) for r in numbers for g in numbers
    }
    found: dict[int, int] = {}
    for r, g in sorted(overlap, key=lambda pair: (-overlap[pair], pair)):
        if r not in found.values() and g not in found:
            found[g] = r
    return found
