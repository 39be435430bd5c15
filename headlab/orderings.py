"""The methods that rank heads without training, by name."""

from __future__ import annotations

from headlab.config import Config
from headlab.fairseq_plugin.relevance import network
from headlab.methods.base import Method
from headlab.methods.confidence import Confidence
from headlab.methods.gradient import Gradient
from headlab.methods.leave_one_out import LeaveOneOut
from headlab.methods.lrp import LRP
from headlab.methods.magnitude import Magnitude
from headlab.methods.random import Random


def ordering(cfg: Config, name: str) -> Method:
    """The method called ``name`` with its settings."""
    settings = cfg.method
    makers = {
        "gradient": lambda: Gradient(settings.gradient),
        "confidence": Confidence,
        "lrp": lambda: LRP(settings.lrp, network),
        "magnitude": Magnitude,
        "leave-one-out": LeaveOneOut,
        "random": lambda: Random(cfg.seed if settings.random.seed is None else settings.random.seed),
    }
    return makers[name]()
