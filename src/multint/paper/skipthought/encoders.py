"""Which sentence encoder does a name on a command line stand for?"""

import importlib
from collections.abc import Sequence
from pathlib import Path

import torch

from multint.paper.obtain import DataError
from multint.paper.skipthought import vectors
from multint.paper.skipthought.baselines import Averages, BagOfWords, words_of
from multint.paper.skipthought.labelled import Data
from multint.paper.skipthought.transfer import Encode, Vectors, any_encoder

BAGS, AVERAGED = "bag-of-words", "averaged:"
KINDS = f"a run's folder, an exported one, module:function, {BAGS} or {AVERAGED}FILE"


def named(name: str, data: Data, tasks: Sequence[str]) -> Encode:
    """An encoder for these tasks."""
    if name == BAGS:
        return BagOfWords(data)
    if name.startswith(AVERAGED):
        return Averages(data, vectors.read(Path(name.removeprefix(AVERAGED)), words_of(data, tasks)))
    if ":" in name:
        return _imported(name)
    raise DataError(f"no encoder {name!r}; an encoder is {KINDS}")


def _imported(name: str) -> Encode:
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        way_out = "install its package, or run python -m multint.paper in the folder of its file"
        raise DataError(f"cannot import the encoder {name}: {error}; {way_out}") from error
    if not callable(found):
        raise DataError(f"{module} has no function {function!r} that takes a list of texts and gives an array")
    return any_encoder(found, name)


def together(encoders: Sequence[Encode]) -> Encode:
    """The vectors of several encoders side by side, as combine-skip has those of uni-skip and bi-skip."""

    def encode(texts: Sequence[str], task: str) -> Vectors:
        return torch.cat([one(texts, task) for one in encoders], 1)

    return encoders[0] if len(encoders) == 1 else encode
