"""Which sentence encoder does a name on a command line stand for?"""

import importlib
from collections.abc import Sequence
from pathlib import Path

import torch

from multint.paper import session
from multint.paper.obtain import DataError
from multint.paper.skipthought import corpora, corpus, counted, vectors
from multint.paper.skipthought.baselines import Averages, BagOfWords, words_of
from multint.paper.skipthought.encoder import Encoder
from multint.paper.skipthought.labelled import Data
from multint.paper.skipthought.model import SkipThought
from multint.paper.skipthought.transfer import Encode, Vectors, any_encoder

BAGS, AVERAGED = "bag-of-words", "averaged:"
KINDS = f"a run's folder, an exported one, module:function, {BAGS}, {AVERAGED}FILE or {AVERAGED}CORPUS"


def named(name: str, data: Data, tasks: Sequence[str], further: Path | None = None) -> Encode:
    """An encoder for these tasks; ``further`` is a file of word vectors for words outside a run's vocabulary."""
    if name == BAGS:
        return BagOfWords(data)
    if name.startswith(AVERAGED):
        return averaged(name.removeprefix(AVERAGED), data, tasks)
    if Path(name).is_dir():
        encoder = trained(Path(name))
        if further is not None:
            wanted, known = words_of(data, tasks), set(encoder.words)
            encoder.expand(vectors.read(further, lambda word: word in known or wanted(word)))
        return of_model(encoder, data)
    if ":" in name:
        return _imported(name)
    raise DataError(f"no encoder {name!r}; an encoder is {KINDS}")


def trained(folder: Path) -> Encoder:
    """The encoder of a run, finished or not, or of an exported model."""
    model = session.load(folder)
    if not isinstance(model, SkipThought):
        raise DataError(f"{folder} is no run of skip-thought vectors")
    return model.encoder


def of_model(encoder: Encoder, data: Data) -> Encode:
    """A trained encoder, which reads the end of a sentence in SICK alone, as in the authors' evaluation."""

    def encode(texts: Sequence[str], task: str) -> Vectors:
        tokens = data.tokens(task)
        return encoder.encode([tokens(one) for one in texts], eos=task == "sick")

    return encode


def averaged(name: str, data: Data, tasks: Sequence[str]) -> Averages:
    """Averages of the word vectors of a file, or of those that a prepared corpus gives by counting."""
    if name in corpora.CORPORA:
        return Averages(data, counted.vectors(corpus.prepare(corpora.load(name, data.data), data.data)))
    found = vectors.read(Path(name), words_of(data, tasks))
    if not found:
        raise DataError(f"{name} has a vector for no word of {', '.join(tasks)}")
    return Averages(data, found)


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
