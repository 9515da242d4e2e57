"""Multiplicative Integration for PyTorch: drop-in recurrent layers after Wu et al. (2016)."""

from multint import probes, related
from multint.convert import convert
from multint.integration import MultiplicativeIntegration, integrate, pairwise
from multint.layers import MIGRU, MILSTM, MIRNN, MIGRUCell, MILSTMCell, MIRNNCell
from multint.regularize import Norm, weight_noise
from multint.scan import backends
from multint.start import PRESETS, Start

__version__ = "0.1.0"
__all__ = [
    "MIGRU",
    "MILSTM",
    "MIRNN",
    "PRESETS",
    "MIGRUCell",
    "MILSTMCell",
    "MIRNNCell",
    "MultiplicativeIntegration",
    "Norm",
    "Start",
    "backends",
    "convert",
    "integrate",
    "pairwise",
    "probes",
    "related",
    "weight_noise",
]
