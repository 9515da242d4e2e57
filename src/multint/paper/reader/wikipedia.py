"""What do the articles of enwik8 say? Pages out of the dump, and their running text out of the mark-up, with its links."""

import codecs
import html
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from multint.paper.reader.questions import STOPWORDS
from multint.paper.reader.text import words

PAGE = re.compile(r"<page>(.*?)</page>", re.DOTALL)
TITLE = re.compile(r"<title>(.*?)</title>")
TEXT = re.compile(r"<text[^>]*>(.*?)</text>", re.DOTALL)
SPACES = ("Category", "Help", "Image", "MediaWiki", "Media", "Portal", "Special", "Talk", "Template", "User", "Wikipedia")
SPACE = re.compile(rf"(?:{'|'.join(SPACES)})(?: talk)?:")
REDIRECT = re.compile(r"\s*#redirect", re.IGNORECASE)


class Page(NamedTuple):
    title: str
    text: str  # with mark-up


def pages(content: Iterable[bytes]) -> Iterator[Page]:
    """The articles of a dump, in order: no redirects, no pages about Wikipedia itself, and not the one the end cuts."""
    decode, rest = codecs.getincrementaldecoder("utf-8")("replace").decode, ""
    for chunk in content:
        rest += decode(chunk)
        end = 0
        for found in PAGE.finditer(rest):
            end = found.end()
            title, text = TITLE.search(found[1]), TEXT.search(found[1])
            if title and text and not SPACE.match(title[1]) and not REDIRECT.match(text[1]):
                yield Page(html.unescape(title[1]), html.unescape(text[1]))
        rest = rest[end:]


# ---- mark-up ----

WHOLE = "math|gallery|timeline|table|pre|nowiki|div|code|blockquote|sub|sup|ref"  # elements that go with their content
LAST = re.compile(
    r"^=+\s*(?:See also|References?|Notes|External links?|Further reading|Bibliography|Sources|Footnotes|Literature)\s*=+\s*$.*",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
INNERMOST = (re.compile(r"\{\{[^{}]*\}\}"), re.compile(r"\{\|(?:(?!\{\||\|\}).)*\|\}", re.DOTALL))
REMOVED = tuple(
    re.compile(pattern, re.DOTALL | re.IGNORECASE)
    for pattern in (
        r"<!--.*?-->",
        r"<ref[^<>]*/>",
        rf"<({WHOLE})\b[^<>]*>.*?</\1>",
        r"<[^<>]{0,200}>",
        r"\[\[(?:image|media|category|[a-z]{2,3}|[a-z]+-[a-z]+|simple|wikt|wiktionary)\s*:(?:[^\[\]]|\[\[[^\[\]]*\]\]|\[[^\[\]]*\])*\]\]",
        r"\[(?:https?|ftp)://\S+\]",
        r"\b(?:https?|ftp)://[^\s\]]+",
        r"__[A-Z]+__",
        r"'{2,}",
        r"\(\s*[,;]*\s*\)",  # what a template left
    )
)
SITES = re.compile(r"\[(?:https?|ftp)://\S+\s+([^\[\]]*)\]")
OTHER_LINES = ("=", "*", "#", ":", ";", "|", "!", "{", "}", " ", "\t", "-")


def paragraphs(text: str) -> list[str]:
    """Running text, a string for each paragraph, with its links as ``[[target|words]]``; no lists, tables and headings."""
    text = LAST.sub("", text)
    text = SITES.sub(r"\1", text)
    for pattern in REMOVED[:3]:
        text = pattern.sub("", text)
    for pattern in INNERMOST:
        count = 1
        while count:
            text, count = pattern.subn("", text)
    for pattern in REMOVED[3:]:
        text = pattern.sub("", text)
    lines = (html.unescape(line).replace("\xa0", " ") for line in text.split("\n"))
    return [line.strip() for line in lines if line.strip() and not line.startswith(OTHER_LINES)]


# ---- links ----

LINK = re.compile(r"\[\[([^\[\]|]*)(?:\|([^\[\]]*))?\]\]([a-z]*)")
DATE = re.compile(
    r"\d+s?(?: ?(?:BC|AD))?|(?:January|February|March|April|May|June|July|August|September|October|November|December)(?: \d+)?"
    r"|\d+(?:st|nd|rd|th) century(?: BC)?|\d+s|\d+ (?:January|February|March|April|May|June|July|August|September|October|November"
    r"|December)"
)


class Token(NamedTuple):
    text: str  # as it is written
    target: str | None = None  # of the link that it belongs to
    inside: bool = False  # it is not the first of its link


def linked(paragraph: str) -> list[Token]:
    """The tokens of a paragraph, those of links with the article that they lead to. Links to dates are words."""
    found, end = [], 0
    for link in LINK.finditer(paragraph):
        found += [Token(word) for word in words(_plain(paragraph[end : link.start()]))]
        target = name(link[1])
        inside = words(_plain((link[2] if link[2] is not None else link[1]) + link[3]))
        if not target or DATE.fullmatch(target) or all(word.lower() in STOPWORDS for word in inside):
            found += [Token(word) for word in inside]
        else:
            found += [Token(word, target, bool(k)) for k, word in enumerate(inside)]
        end = link.end()
    return found + [Token(word) for word in words(_plain(paragraph[end:]))]


def _plain(text: str) -> str:
    return text.replace("[", "").replace("]", "")


def name(target: str) -> str:
    """The title that a link leads to.

    >>> name("abraham_Lincoln#Youth")
    'Abraham Lincoln'
    """
    title = " ".join(target.partition("#")[0].replace("_", " ").split()).lstrip(":")
    return title[:1].upper() + title[1:]
