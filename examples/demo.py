"""Does Multiplicative Integration help a small character language model?

Trains an LSTM and an MI-LSTM of equal size on the documentation text that ships with Python, on the same batches from the same
seed, and prints the bits per character of both. One seed, one small corpus, a few minutes on a CPU: an illustration, not one of
the paper's experiments.
"""

import argparse
import math
import time
from collections.abc import Callable
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from multint import MILSTM

BATCH, STEPS, CLIP = 32, 50, 1.0
LEARNING_RATE = 1e-2  # of 2e-3, 5e-3, 1e-2, 2e-2 the one at which neither model is far from its own best on validation
FORMS = {"LSTM": "additive", "MI-LSTM": "general"}


class CharLM(nn.Module):
    def __init__(self, symbols: int, hidden: int, integration: str) -> None:
        super().__init__()
        self.lstm = MILSTM(symbols, hidden, integration=integration, start="text8-lstm")
        self.out = nn.Linear(hidden, symbols)

    def forward(self, tokens: Tensor, state=None):
        h, state = self.lstm(tokens, state)  # integer tokens: W x is a row of a table, no one-hot is built
        return self.out(h), state


def corpus() -> tuple[Tensor, int]:
    """The text as token numbers, and how many symbols it has."""
    text = "\n".join(topics[name] for name in sorted(topics))
    symbols = {c: k for k, c in enumerate(sorted(set(text)))}
    return torch.tensor([symbols[c] for c in text]), len(symbols)


def in_streams(text: Tensor, n: int) -> Tensor:
    """The text cut into n streams of equal length, (t, n); what does not divide is left out."""
    t = len(text) // n
    return text[: t * n].view(n, t).t()


@torch.no_grad()
def bpc(model: CharLM, text: Tensor) -> float:
    """Bits per character over 16 streams, the state carried along each."""
    x, state, nats = in_streams(text, 16), None, 0.0
    for t in range(0, len(x) - 1, 200):
        target = x[t + 1 : t + 201]
        logits, state = model(x[t : t + len(target)], state)
        nats += F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum").item()
    return nats / math.log(2) / (x.numel() - x.shape[1])


def train(name: str, train_text: Tensor, valid_text: Tensor, symbols: int, updates: int, hidden: int, seed: int) -> CharLM:
    torch.manual_seed(seed)
    model = CharLM(symbols, hidden, FORMS[name])
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    x, state, t = in_streams(train_text, BATCH), None, 0
    for update in range(1, updates + 1):
        if t + STEPS + 1 > len(x):
            t, state = 0, None
        logits, state = model(x[t : t + STEPS], state)
        state, t = tuple(part.detach() for part in state), t + STEPS
        loss = F.cross_entropy(logits.flatten(0, 1), x[t - STEPS + 1 : t + 1].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        if update % 100 == 0 or update == updates:
            bits = loss.item() / math.log(2)
            print(f"  {name:<8} update {update:>5}   train {bits:.3f}   valid {bpc(model, valid_text):.3f} bpc", flush=True)
    return model


def whole(least: int) -> Callable[[str], int]:
    def read(word: str) -> int:
        if not (word.isdecimal() and int(word) >= least):
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {word!r}")
        return int(word)

    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--updates", type=whole(1), default=900, help="training updates of each model (default: 900)")
    parser.add_argument("--hidden", type=whole(1), default=192, help="hidden units (default: 192)")
    parser.add_argument("--seed", type=whole(0), default=0, help="of the starting weights (default: 0)")
    given = parser.parse_args()

    torch.set_num_threads(1)  # the products of one step are too small to share
    text, symbols = corpus()
    train_text, valid_text, test_text = text.tensor_split((len(text) * 9 // 10, len(text) * 19 // 20))
    print(f"{len(text):,} characters of Python documentation, {symbols} symbols; {given.hidden} units, {given.updates} updates")
    rows = []
    for name in FORMS:
        began = time.perf_counter()
        model = train(name, train_text, valid_text, symbols, given.updates, given.hidden, given.seed)
        seconds = time.perf_counter() - began
        rows.append((name, sum(p.numel() for p in model.parameters()), bpc(model, valid_text), bpc(model, test_text), seconds))
    print("\n             parameters   valid bpc   test bpc   seconds")
    for name, parameters, valid, test, seconds in rows:
        print(f"{name:<10} {parameters:>12,} {valid:>11.3f} {test:>10.3f} {seconds:>9.0f}")
    extra, gain = rows[1][1] - rows[0][1], rows[0][3] - rows[1][3]
    print(f"\nThe MI-LSTM has {extra:,} more parameters: alpha, beta1 and beta2 of its four gates.")
    print(f"On the test text it is {abs(gain):.3f} bits per character {'better' if gain > 0 else 'worse'} than the LSTM.")
    print("One seed on a small corpus: an illustration, not one of the paper's experiments.")


if __name__ == "__main__":
    main()
