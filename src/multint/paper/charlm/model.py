"""A character language model: tokens → recurrent layer → softmax over the next symbol (§3.2)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from multint import MIGRU, MILSTM, MIRNN, Start
from multint.paper.charlm.corpus import Alphabet
from multint.related import MultiplicativeLSTM, MultiplicativeRNN, SecondOrderRNN

LAYERS: dict[str, Callable[..., nn.Module]] = {
    "rnn": MIRNN,
    "lstm": MILSTM,
    "gru": MIGRU,
    "mrnn": MultiplicativeRNN,
    "mlstm": MultiplicativeLSTM,
    "second-order": SecondOrderRNN,
}


class CharModel(nn.Module):
    """One-hot input without building it, ``layers`` recurrent layers, dropout, an output layer drawn from the same range as U.

    A trained model that is loaded from its folder has its ``alphabet``.
    """

    alphabet: Alphabet | None = None

    def __init__(
        self, symbols: int, hidden: int, cell: str, layers: int, start: Start, dropout: float = 0.0, **options: Any
    ) -> None:
        super().__init__()
        self.core = LAYERS[cell](symbols, hidden, num_layers=layers, start=start, **options)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(hidden, symbols)
        r = start.r_u if start.r_u is not None else hidden**-0.5  # not r_w, which §3.1 varies for W alone
        nn.init.uniform_(self.out.weight, -r, r)
        nn.init.zeros_(self.out.bias)

    def forward(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Logits (t, n, symbols) for the symbols that follow, and the state after the last."""
        h, state = self.core(tokens, state)
        return self.out(self.dropout(h)), state


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@torch.no_grad()
def sample(
    model: CharModel,
    prompt: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Any:
    """Endless symbols after the prompt (t,), one at a time."""
    logits, state = model(prompt.unsqueeze(1))
    while True:
        scores = logits[-1, 0].float() / max(temperature, 1e-6)
        if top_k is not None and top_k < scores.numel():
            scores = scores.masked_fill(scores < scores.topk(top_k).values[-1], -torch.inf)
        token = torch.multinomial(scores.softmax(-1), 1, generator=generator)
        yield int(token)
        logits, state = model(token.unsqueeze(1), state)
