r"""The attentive reader of §3.5, in one direction.

y_t are the states of an LSTM over the document and u is the last state of another one over the question:

.. math::
    m_t = \tanh(A y_t + a + B u + \langle D y_t, D u\rangle),\quad r = \sum_t \mathrm{softmax}_t(v\cdot m_t)\, y_t,\quad
    g = \tanh(R r + Q u + q + M \bar y)

The answer is read from O g + o. Weights begin as in the code of Cooijmans et al., except that the gates are drawn independently.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from multint import MILSTM, Norm, Start
from multint.paper.reader.attention import look
from multint.paper.reader.vocabulary import NIL, Vocabulary
from multint.regularize import StepBatchNorm
from multint.shapes import Bool, Float, Int

NORMS = (None, "lstm", "everywhere")
READOUTS = ("vocabulary", "entities")
PLACES = ("ay", "bu", "my", "qu", "rr")  # where "everywhere" is, beside the two readers


@dataclass(frozen=True)
class Shape:
    """What a reader is built from, apart from its vocabulary.

    Args:
        gain: scale of the orthogonal matrices W and U of every gate, A and D.
        spread: word vectors and O are drawn from U(-spread, spread); None: as Glorot and Bengio (2010) say.
        norm: recurrent batch norm: None, in both readers ("lstm"), or in the attention and in g too ("everywhere").
        gamma: what the scales of the norms begin as.
        max_steps: steps with statistics of their own.
        padding: steps behind a document's end count in the statistics. If not, documents are packed.
        dropout: share of the values of word vectors and of g that are zero in training.
        readout: the answer is one of the whole "vocabulary", or of the "entities".
        similarity: whether there is the term with D.
    """

    hidden: int
    integration: str = "general"
    start: Start = field(default_factory=Start)
    gain: float = 0.05
    spread: float | None = None
    norm: str | None = None
    gamma: float = 0.1
    max_steps: int = 400
    padding: bool = True
    dropout: float = 0.5
    readout: str = "vocabulary"
    similarity: bool = True

    def __post_init__(self) -> None:
        for name, known in (("norm", NORMS), ("readout", READOUTS)):
            if getattr(self, name) not in known:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}; select from {', '.join(map(str, known))}")

    @property
    def batch_norm(self) -> Norm | None:
        if self.norm is None:
            return None
        return Norm("batch", gamma=self.gamma, max_steps=self.max_steps, padding=self.padding)


class Answer(NamedTuple):
    """Scores of all answers, and where the reader looked."""

    logits: Float[Tensor, "n k"]
    attention: Float[Tensor, "t n"]


class AttentiveReader(nn.Module):
    """Reads documents (t, n) and questions (s, n): numbers of a ``Vocabulary``, NIL behind the end.

    ``sentences`` and ``longest`` are what a trained model was shown of a document.
    """

    sentences: int | None = None
    longest: int = 400

    def __init__(self, shape: Shape, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.shape, self.vocabulary = shape, vocabulary
        d, norm = shape.hidden, shape.batch_norm
        self.words = nn.Embedding(len(vocabulary), d, padding_idx=NIL)
        self.document, self.question = (MILSTM(d, d, integration=shape.integration, start=shape.start, norm=norm) for _ in range(2))
        self.document_h0, self.question_h0 = (nn.Parameter(torch.zeros(d)) for _ in range(2))  # c begins at zero
        self.ay, self.bu, self.dy, self.rr, self.qu, self.my = (nn.Linear(d, d, bias=False) for _ in range(6))
        self.a, self.q, self.v = (nn.Parameter(torch.zeros(d)) for _ in range(3))
        self.out = nn.Linear(d, vocabulary.entities if shape.readout == "entities" else len(vocabulary))
        places = PLACES if shape.norm == "everywhere" and norm else ()
        self.norms = nn.ModuleDict({place: StepBatchNorm(norm, d, d, shape.gamma, False) for place in places})  # type: ignore[arg-type]
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Weights as they begin, without those that the layers draw themselves."""
        s, d = self.shape, self.shape.hidden
        for reader in (self.document, self.question):
            for weight in (reader.weight_ih_l0, reader.weight_hh_l0):
                for gate in torch.chunk(weight, 4):  # type: ignore[arg-type]
                    gate.copy_(nn.init.orthogonal_(torch.empty_like(gate), s.gain))
        for layer in (self.ay, self.dy):
            nn.init.orthogonal_(layer.weight, s.gain)
        for layer in (self.bu, self.rr, self.qu, self.my):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.uniform_(self.v, -(d**-0.5), d**-0.5)
        for table in (self.words.weight, self.out.weight):
            spread = math.sqrt(6 / (len(table) + d)) if s.spread is None else s.spread
            nn.init.uniform_(table, -spread, spread)
        self.words.weight[NIL] = 0.0
        nn.init.zeros_(self.out.bias)

    def forward(self, document: Int[Tensor, "t n"], question: Int[Tensor, "s n"]) -> Answer:
        inside = document != NIL
        y = self.read(self.document, self.document_h0, document)
        u = ends(self.read(self.question, self.question_h0, question), question != NIL)
        # <D y, D u> is <y, D^T D u>: one product for a row, none for a step
        w = F.linear(self.dy(u), self.dy.weight.t()) if self.shape.similarity else torch.zeros_like(u)
        k = self.normed("bu", self.bu(u)) + self.a
        r, mean, attention = look(self.normed("ay", self.ay(y), inside), k, y, w, self.v, inside)
        terms = self.normed("rr", self.rr(r)) + self.normed("qu", self.qu(u)) + self.q + self.normed("my", self.my(mean))
        return Answer(self.out(dropped(torch.tanh(terms), self.shape.dropout, self.training)), attention)

    def read(self, reader: MILSTM, h0: Float[Tensor, " d"], tokens: Int[Tensor, "t n"]) -> Float[Tensor, "t n d"]:
        """The states of an LSTM over word vectors."""
        x = dropped(narrow(self.words(tokens)), self.shape.dropout, self.training)
        state = tuple(part.expand(1, tokens.shape[1], -1) for part in (h0, torch.zeros_like(h0)))
        if self.shape.norm is None or self.shape.padding:
            return reader(x, state)[0]  # type: ignore[no-any-return]
        packed = pack_padded_sequence(x, (tokens != NIL).sum(0).cpu(), enforce_sorted=False)
        return pad_packed_sequence(reader(packed, state)[0], total_length=len(tokens))[0]

    def normed(
        self, place: str, x: Float[Tensor, "*rows d"], inside: Bool[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*rows d"]:
        """The term, normalised over all rows where there is a norm for it."""
        if place not in self.norms:
            return x
        d = x.shape[-1]
        flat = self.norms[place](x.reshape(-1, d), 0, None if inside is None else inside.flatten(), slice(0, d))
        return flat.view(x.shape)  # type: ignore[no-any-return]


def ends(h: Float[Tensor, "s n d"], inside: Bool[Tensor, "s n"]) -> Float[Tensor, "n d"]:
    """The state after each row's last step."""
    place = (inside.sum(0) - 1).clamp(min=0)
    return h.gather(0, place.view(1, -1, 1).expand(1, -1, h.shape[-1])).squeeze(0)


def narrow(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """In the type of the products under autocast, which is what the layer takes: half of the memory that dropout goes through."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if kind != "meta" and torch.is_autocast_enabled(kind) else x


def dropped(x: Float[Tensor, "*shape"], p: float, training: bool) -> Float[Tensor, "*shape"]:
    """Dropout without scaling in training and with the mean afterwards; p counts in steps of 1/256.

    A byte for each value is many times faster to draw than a number.
    """
    steps = round(256 * p)
    if not training or steps == 0:
        return x if steps == 0 else x * (1 - steps / 256)
    drawn = torch.empty(x.numel() // 8 + 1, dtype=torch.int64, device=x.device).random_(-(2**63), None)
    kept = torch.empty_like(x, requires_grad=False)
    torch.ge(drawn.view(torch.uint8)[: x.numel()].view(x.shape), steps, out=kept)
    return x * kept


def described(model: Mapping[str, Any]) -> AttentiveReader:
    """The model of ``ReaderTask.description()``, which knows what of a document it is shown."""
    shape = Shape(**{**model["shape"], "start": Start(**model["shape"]["start"])})
    found = AttentiveReader(shape, Vocabulary(model["entities"], tuple(model["words"])))
    found.sentences, found.longest = model["sentences"], model["longest"]
    return found


def description(shape: Shape, vocabulary: Vocabulary, sentences: int | None, longest: int) -> dict[str, Any]:
    words = {"entities": vocabulary.entities, "words": list(vocabulary.words)}
    return {"shape": asdict(shape), **words, "sentences": sentences, "longest": longest}
