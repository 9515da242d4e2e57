"""How good is a prediction? The figures of merit the paper reports."""

import math


def bpc(nats: float) -> float:
    """Bits per character: log2 of the perplexity, from the mean negative log-likelihood in nats."""
    return nats / math.log(2)
