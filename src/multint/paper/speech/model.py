"""The recogniser of §3.3: bidirectional recurrent layers over features, and one output for every unit and the blank."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from multint import MILSTM, Start
from multint.paper.speech.features import Form
from multint.paper.speech.utterances import Units
from multint.shapes import Float, Int


class Recogniser(nn.Module):
    """Features → (MI-)LSTM layers, dropout between them → log-probabilities of blank and units at every step."""

    def __init__(
        self,
        units: Units,
        form: Form,
        hidden: int,
        layers: int,
        *,
        bidirectional: bool = True,
        integration: str = "general",
        start: Start | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.units, self.form = units, form
        self.core = MILSTM(
            form.size,
            hidden,
            num_layers=layers,
            bidirectional=bidirectional,
            dropout=dropout if layers > 1 else 0.0,
            integration=integration,
            start=start,
        )
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(hidden * (2 if bidirectional else 1), 1 + len(units))
        if start is not None and start.r_u is not None:
            nn.init.uniform_(self.out.weight, -start.r_u, start.r_u)
            nn.init.zeros_(self.out.bias)

    def forward(self, x: Float[Tensor, "t n f"], lengths: Int[Tensor, " n"]) -> Float[Tensor, "t n k"]:
        """Log-probabilities. Sequences are sorted, the longest first; steps past a sequence's length mean nothing."""
        h, _ = self.core(pack_padded_sequence(x, lengths.cpu()))
        return F.log_softmax(self.out(self.dropout(pad_packed_sequence(h)[0])).float(), -1)

    @torch.no_grad()
    def posteriors(self, x: Float[Tensor, "t f"], state: Any = None) -> tuple[Float[Tensor, "t k"], Any]:
        """Log-probabilities of one sequence, and the state after it. A state can be given to layers of one direction alone."""
        h, state = self.core(x.unsqueeze(1), state)
        return F.log_softmax(self.out(h).float(), -1).squeeze(1), state


def described(model: Mapping[str, Any]) -> Recogniser:
    """The model of ``SpeechTask.description()``."""
    units = model["units"]
    return Recogniser(
        Units(tuple(units["symbols"]), tuple(units["whole"]), units["unknown"]),
        Form(**model["form"]),
        **{**model["layers"], "start": Start(**model["layers"]["start"])},
    )
