"""How does text become sentences, and a sentence tokens?

Sentences are found by syntok's rules, tokens by NLTK's tokeniser of the Penn Treebank, the one that the authors' code uses. Neither
needs any data.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from multint.paper.obtain import DataError

Tokens = list[str]


def sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph, as they stand in it."""
    tokenise, segment = _splitter()
    starts = [found[0].offset for found in segment(tokenise(paragraph)) if found]
    return [paragraph[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]


def tokens(sentence: str) -> Tokens:
    """The tokens of one sentence, capitals kept. Quotes become `` and '', and "don't" becomes "do n't"."""
    return _tokeniser()(sentence)


def words(text: str) -> Tokens:
    """The tokens of a text of any number of sentences."""
    return [token for sentence in sentences(text) for token in tokens(sentence)]


@cache
def _splitter() -> tuple[Callable[[str], Any], Callable[[Any], Any]]:
    try:
        from syntok import segmenter  # type: ignore[import-not-found, import-untyped, unused-ignore]
        from syntok.tokenizer import Tokenizer  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise DataError("splitting text into sentences needs syntok: pip install 'multint[skipthought]'") from error
    tokenizer = Tokenizer(emit_hyphen_or_underscore_sep=True, replace_not_contraction=False)
    return tokenizer.tokenize, segmenter.segment


@cache
def _tokeniser() -> Callable[[str], Tokens]:
    try:
        from nltk.tokenize.destructive import NLTKWordTokenizer  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise DataError("splitting sentences into tokens needs NLTK: pip install 'multint[skipthought]'") from error
    tokenise: Callable[[str], Tokens] = NLTKWordTokenizer().tokenize
    return tokenise


def versions() -> str:
    """The libraries that decide where sentences and tokens end, with their versions."""
    from importlib.metadata import version

    _splitter(), _tokeniser()  # one that is missing is named
    return f"syntok {version('syntok')}, nltk {version('nltk')}"
