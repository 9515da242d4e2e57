"""The model of §3.4: an encoder whose vector of a sentence two decoders turn into the sentences around it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from multint import MIGRU, Start
from multint.paper.skipthought.data import Batch, Target
from multint.paper.skipthought.encoder import Encoder, no_inner_bias
from multint.paper.skipthought.softmax import summed_cross_entropy
from multint.shapes import Float

CODE = 0.1  # word vectors, W and the output layer begin in U(-.1, .1) in the authors' code


class SkipThought(nn.Module):
    """One embedding for all words, an (MI-)GRU that encodes, two GRUs that decode, one output layer for both.

    A decoder starts from the sentence's vector, and that is all it is told. It is given the words before the one it predicts.
    """

    def __init__(self, words: Sequence[str], width: int, hidden: int, **how: Any) -> None:
        super().__init__()
        self.encoder = Encoder(words, width, hidden, **how)
        plain = Start(1.0, 1.0, 1.0, 0.0, r_w=CODE, orthogonal=True)
        self.after, self.before = (
            MIGRU(width, hidden, integration="additive", start=plain, reset_after=how.get("reset_after", True)) for _ in range(2)
        )
        no_inner_bias(self.after)
        no_inner_bias(self.before)
        self.out = nn.Linear(hidden, self.encoder.embedding.num_embeddings)
        nn.init.uniform_(self.out.weight, -CODE, CODE)
        nn.init.zeros_(self.out.bias)

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        """The summed loss of both neighbours."""
        vector = self.encoder(batch.x, batch.last)
        h = torch.cat([self.decoded(self.after, batch.after, vector), self.decoded(self.before, batch.before, vector)])
        return summed_cross_entropy(h, self.out.weight, self.out.bias, torch.cat([batch.after.wanted, batch.before.wanted]))

    def decoded(self, decoder: MIGRU, target: Target, vector: Tensor) -> Float[Tensor, "m h"]:
        """The decoder's state before each word that counts."""
        given = self.encoder.embedding(target.words[:-1])
        h, _ = decoder(torch.cat([torch.zeros_like(given[:1]), given]), vector.unsqueeze(0))
        found: Tensor = h.flatten(0, 1).index_select(0, target.at)
        return found


def described(model: Mapping[str, Any]) -> SkipThought:
    """The model of ``SkipThoughtTask.description()``."""
    how = model["encoder"]
    return SkipThought(model["words"], **{**how, "start": Start(**how["start"])})
