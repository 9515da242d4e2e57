"""Where does each utterance go wrong? An HTML page with what was said beside what was heard, word by word."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from multint.paper.speech.scoring import Pair, align
from multint.publish import replacing


@dataclass(frozen=True)
class Heard:
    """An utterance with its transcript and what a recogniser made of it."""

    name: str
    said: Sequence[str]
    heard: Sequence[str]


STYLE = """
:root {
  color-scheme: light dark;
  --wrong: light-dark(#b3261e, #ff8a80); --extra: light-dark(#8a5a00, #ffcc66); --line: light-dark(#ddd, #444);
}
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 75rem; padding: 0 1rem }
section { border-top: 1px solid var(--line); padding: .6rem 0 }
h2 { font-size: .85rem; font-weight: 600; margin: 0 0 .3rem }
.words { display: flex; flex-wrap: wrap; gap: .1rem .5rem }
.pair { display: inline-flex; flex-direction: column; min-height: 3em }
.pair span:last-child { font-size: .85em }
.substituted span:last-child { color: var(--wrong) }
.deleted span:first-child { color: var(--wrong); text-decoration: line-through }
.inserted span:last-child { color: var(--extra) }
"""


def page(title: str, summary: str, ones: Iterable[Heard]) -> str:
    """All utterances, those with the most errors first."""
    aligned = [(one, align(one.said, one.heard)) for one in ones]
    aligned.sort(key=lambda both: (-_wrong(both[1]), both[0].name))
    key = "Above: what was said. Below, where it differs: what was heard. Struck out: not heard. Below a gap: heard, not said."
    body = "\n".join(_section(one, pairs) for one, pairs in aligned)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{html.escape(title)}</title><style>{STYLE}</style></head>
<body><h1>{html.escape(title)}</h1><p>{html.escape(summary)}</p><p>{key}</p>
{body}
</body></html>
"""


def write(path: Path, title: str, summary: str, ones: Iterable[Heard]) -> None:
    with replacing(path) as out:
        out.write(page(title, summary, ones).encode())


def _wrong(pairs: Sequence[Pair]) -> int:
    return sum(pair.said != pair.heard for pair in pairs)


def _section(one: Heard, pairs: Sequence[Pair]) -> str:
    words = "".join(_pair(pair) for pair in pairs)
    count = f"{_wrong(pairs)} of {len(one.said)} words wrong"
    return f'<section><h2>{html.escape(one.name)}: {count}</h2><div class="words">{words}</div></section>'


def _pair(pair: Pair) -> str:
    if pair.said == pair.heard:
        kind, below = "right", None
    else:
        kind = "inserted" if pair.said is None else "deleted" if pair.heard is None else "substituted"
        below = pair.heard
    above, under = (html.escape(word or "") or "&nbsp;" for word in (pair.said, below))
    return f'<span class="pair {kind}"><span>{above}</span><span>{under}</span></span>'
