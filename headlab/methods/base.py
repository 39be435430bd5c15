"""What all methods share: they see a model only through its attention layers and end in one score per head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from headlab.attention.heads import Head, Layout, check_scope
from headlab.attention.layer import HeadAttention, attention_layers


class Looked(NamedTuple):
    """A forward pass over a batch: cross-entropy in nats, summed over its target tokens, and how many there are."""

    loss: Tensor
    tokens: int


#: A forward pass over a batch in evaluation mode, without gradients but for a method that ``differentiates``.
LossFn = Callable[[Any], Looked]


class Method(ABC):
    """A way to score attention heads.

    Call :meth:`attach`, then train with :meth:`advance` before and :meth:`loss` in every update (methods that
    need no training skip this), then :meth:`score` for methods that look at data, and :meth:`keep`.
    """

    name: ClassVar[str]
    trains: ClassVar[bool] = False  # whether scores come from training with loss()
    chain: ClassVar[bool] = False  # whether one training passes through all targets, falling; or each has its own
    freezes: bool = False  # whether the model stays as it is while scores are trained
    watches: ClassVar[bool] = False  # whether it looks at the valid set when an epoch ends: epoch_ended()
    looks: ClassVar[bool] = False  # whether scores come from score(), which looks at the valid set
    differentiates: ClassVar[bool] = False  # whether score() needs a loss with gradients
    learning_rate: float = 0.0  # of the method's own parameters, marked ``param_group = "gates"``

    scope: tuple[str, ...]
    layers: list[HeadAttention]

    def attach(self, model: nn.Module, scope: Iterable[str]) -> None:
        """Take hold of the attention layers of ``model`` that may be pruned."""
        self.scope = check_scope(scope)
        self.layers = attention_layers(model, self.scope)

    def loss(self, ntokens: int) -> Tensor | None:
        """The extra loss of this update, in nats per target token; None where there is none."""
        return None

    def advance(self, epoch: int, update: int, progress: float) -> None:  # noqa: B027 - most methods have no schedule
        """Move schedules on; called before update ``update`` (from 0) of ``progress`` (0 to 1) of the training."""

    def epoch_ended(self, epoch: int, update: int, batches: Iterable[Any], loss_fn: LossFn) -> bool:
        """Look at ``batches`` of the valid set after an epoch; true if the weights of now have to be kept."""
        return False

    def score(self, batches: Iterable[Any], loss_fn: LossFn) -> None:  # noqa: B027 - only methods that look at data
        """Look at ``batches``, once or :attr:`passes` times, through ``loss_fn``."""

    @property
    def passes(self) -> int:
        """How many times :meth:`score` goes through its batches; known once the method is attached."""
        return 1 if self.looks else 0

    @abstractmethod
    def scores(self) -> dict[Head, float]:
        """One number per existing head of the scope, in table order; larger means more worth keeping."""

    def heads(self) -> list[Head]:
        """The existing heads of the scope, in table order."""
        return [Head(layer.kind, layer.layer, i) for layer in self.layers for i in layer.heads]

    def keep(self, target: int, layout: Layout) -> Layout:
        """``layout`` with exactly the ``target`` best heads of the scope; ties go to the earlier head.

        Raises ValueError where the scope does not have that many heads.
        """
        scores = self.scores()
        if not 0 <= target <= len(scores):
            raise ValueError(f"cannot keep {target} of {len(scores)} heads within {', '.join(self.scope)}")
        best = sorted(scores, key=lambda head: -scores[head])[:target]  # sorted() is stable: ties in table order
        return layout.keep(best, self.scope)

    def emergent(self) -> int | None:
        """How many heads the method itself would keep now; None for one that only ranks them."""
        return None

    def factors(self) -> dict[Head, float]:
        """What kept heads are multiplied by when the others are removed; heads left out keep 1."""
        return {}

    def log(self) -> dict[str, float]:
        """Numbers worth a line in ``metrics.jsonl``."""
        return {}

    def warnings(self) -> list[str]:
        """What a person should know about how the scores came out, a line each."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Everything beside parameters that a resumed run needs."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most methods have no state
        """Take up what :meth:`state_dict` gave."""


def ranked(heads: Sequence[Head], order: Tensor) -> dict[Head, float]:
    """Scores that rank ``heads`` by the permutation ``order``: the head at ``order[0]`` is the best."""
    values = torch.empty(len(heads))
    values[order] = torch.arange(len(heads), 0, -1, dtype=torch.float32)
    return {head: float(v) for head, v in zip(heads, values, strict=True)}
