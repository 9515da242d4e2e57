"""What does a trained encoder need? Its words, one embedding, one recurrent layer. Nothing that trains.

from multint.paper.skipthought.encoder import load

encoder = load("model")
vectors = encoder.encode(["A dog sleeps.", "A boat is red."])
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from multint import MIGRU, Start
from multint.paper.obtain import DataError
from multint.paper.skipthought import text
from multint.shapes import Float, Int

EOS, UNKNOWN = 0, 1  # numbers of the end of a sentence and of words outside the vocabulary
SPECIAL = ("<eos>", "UNK")
TOGETHER = 16_384  # tokens in a batch


class Encoder(nn.Module):
    """Words → embedding → (MI-)GRU → the last state, which is the sentence's vector.

    Args:
        words: of the vocabulary, the most frequent first; <eos> and UNK are numbered before them.
        width: of word vectors.
        hidden: of the sentence's vector; with ``bidirectional`` each direction has half of it.
        reset_after: where the reset gate acts, as in ``multint.MIGRU``; the authors' code has True.
    """

    def __init__(
        self,
        words: Sequence[str],
        width: int,
        hidden: int,
        *,
        bidirectional: bool = False,
        integration: str = "general",
        start: Start | None = None,
        reset_after: bool = True,
    ) -> None:
        super().__init__()
        if bidirectional and hidden % 2:
            raise ValueError(f"an encoder of two directions needs an even number of units, got {hidden}")
        self.words = tuple(words)
        self.places = {word: place for place, word in enumerate(self.words, start=len(SPECIAL))}
        self.embedding = nn.Embedding(len(self.words) + len(SPECIAL), width)
        units = hidden // 2 if bidirectional else hidden
        self.core = MIGRU(width, units, bidirectional=bidirectional, integration=integration, start=start, reset_after=reset_after)
        no_inner_bias(self.core)
        bound = start.r_w if start is not None and start.r_w is not None else 0.1
        nn.init.uniform_(self.embedding.weight, -bound, bound)
        self.further: dict[str, Tensor] = {}  # vectors of words outside the vocabulary

    @property
    def size(self) -> int:
        """Of a sentence's vector."""
        size: int = self.core.hidden_size * (2 if self.core.bidirectional else 1)
        return size

    def forward(self, x: Int[Tensor, "t n"], last: Int[Tensor, ""] | None = None) -> Float[Tensor, "n h"]:
        """Vectors of sentences of one length. ``last`` is their last step, where padding follows; one direction alone takes it."""
        return self.states(self.embedding(x), last)

    def states(self, vectors: Float[Tensor, "t n e"], last: Int[Tensor, ""] | None = None) -> Float[Tensor, "n h"]:
        """The same, of word vectors."""
        output, h_n = self.core(vectors)
        if last is not None and not self.core.bidirectional:
            vector: Tensor = output.index_select(0, last.reshape(1))[0]
            return vector
        return torch.cat(list(h_n), -1)

    # ---- sentences ----

    @torch.no_grad()
    def encode(
        self,
        sentences: Sequence[str | Sequence[str]],
        *,
        eos: bool = False,
        normalise: bool = True,
        progress: Callable[[int], None] = lambda done: None,
    ) -> Float[Tensor, "n h"]:
        """The vectors of sentences, of unit length.

        Args:
            sentences: texts, or lists of tokens. Words are looked up as they are written, then in lower case.
            eos: put the end after each sentence, as in training. The authors' evaluation does so for SICK alone.
            progress: is given the number of sentences done.
        """
        tokens = [text.words(one) if isinstance(one, str) else list(one) for one in sentences]
        by_length: dict[int, list[int]] = {}
        for place, one in enumerate(tokens):
            by_length.setdefault(len(one), []).append(place)
        device = self.embedding.weight.device
        found = torch.empty(len(tokens), self.size)
        done = 0
        for length, places in sorted(by_length.items()):
            for part in torch.tensor(places).split(max(1, TOGETHER // (length + 1))):
                vectors = self.looked_up([tokens[place] for place in part.tolist()], eos, device)
                if len(vectors):
                    found[part] = self.states(vectors).float().cpu()
                else:
                    found[part] = 0.0  # no word at all
                done += len(part)
                progress(done)
        return F.normalize(found, dim=1) if normalise else found

    def looked_up(self, tokens: Sequence[Sequence[str]], eos: bool, device: torch.device) -> Float[Tensor, "t n e"]:
        """The vectors of the words of sentences of one length."""
        end = [EOS] if eos else []
        ids = torch.tensor([[self.place(token) for token in one] + end for one in tokens], dtype=torch.int64)
        vectors: Tensor = self.embedding(ids.T.to(device))
        if self.further:
            for column, one in enumerate(tokens):
                for step, token in enumerate(one):
                    if ids[column, step] == UNKNOWN and (known := self._expanded(token)) is not None:
                        vectors[step, column] = known.to(vectors)
        return vectors

    def place(self, token: str) -> int:
        """The number of a word, as it is written or in lower case; UNKNOWN if it has none."""
        found = self.places.get(token)
        if found is None and token not in self.further:
            found = self.places.get(token.lower())
        return UNKNOWN if found is None else found

    def _expanded(self, token: str) -> Tensor | None:
        found = self.further.get(token)
        return self.further.get(token.lower()) if found is None else found

    def unknown(self, tokens: Sequence[Sequence[str]]) -> tuple[int, int]:
        """How many of the tokens have no vector of their own, of how many."""
        every = [token for one in tokens for token in one]
        return sum(self.place(token) == UNKNOWN and self._expanded(token) is None for token in every), len(every)

    def expand(self, vectors: Mapping[str, Any]) -> int:
        """Give words outside the vocabulary a vector: word vectors of another model, mapped linearly so that the words both know
        come as near as they can. Returns how many words both know.
        """
        shared = [word for word in self.words if word in vectors]
        if not shared:
            raise DataError("the word vectors have no word of the vocabulary; are they of the same language?")
        others = torch.stack([torch.as_tensor(vectors[word]) for word in shared]).double()
        own = self.embedding.weight.detach()[[self.places[word] for word in shared]].double().cpu()
        middle, centre = others.mean(0), own.mean(0)
        slope = torch.linalg.lstsq(others - middle, own - centre, driver="gelsd").solution
        for word, vector in vectors.items():
            if word not in self.places:
                self.further[word] = ((torch.as_tensor(vector).double() - middle) @ slope + centre).float()
        return len(shared)


def no_inner_bias(layer: MIGRU) -> None:
    """Keep the bias inside the reset at zero, as no parameter: the authors' GRU has none."""
    for name, parameter in list(layer.named_parameters()):
        if name.startswith("bias_hn"):
            delattr(layer, name)
            layer.register_buffer(name, torch.zeros_like(parameter))


def described(model: Mapping[str, Any]) -> Encoder:
    """The encoder of a description."""
    how = model["encoder"]
    return Encoder(model["words"], **{**how, "start": Start(**how["start"])})


def load(folder: Path | str, device: str = "cpu") -> Encoder:
    """The encoder of a finished run or of an exported model, in evaluation mode."""
    from safetensors import SafetensorError, safe_open

    folder = Path(folder)
    try:
        about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        encoder = described(about["model"])
        with safe_open(folder / "weights.safetensors", "pt") as file:
            names = [name for name in file.keys() if name.startswith("encoder.")]  # noqa: SIM118 - not a mapping
            encoder.load_state_dict({name.removeprefix("encoder."): file.get_tensor(name) for name in names})
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise DataError(f"{folder} holds no sentence encoder: {error}") from error
    return encoder.to(device).eval()
