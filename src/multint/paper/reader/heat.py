"""How are an answer and the attention shown, on a terminal and as a page?"""

import html
from collections.abc import Iterator

import click

from multint.paper.reader.asking import Reply, share

MARKED = 0.05  # share of the attention from which a word has its percentage beside it
TITLE = "Where the reader looked"


def terminal(reply: Reply, top: int) -> Iterator[str]:
    """A ranked list, then the text, darker where the reader looked. Large shares are written beside words: not all see colours."""
    for rank, one in enumerate(reply.candidates[:top], start=1):
        right = "  (right)" if one.entity == reply.question.answer else ""
        yield f"{rank:3}. {100 * one.probability:5.1f} %  {one.name or one.entity}{right}"
    if not reply.candidates:
        yield "there is no entity in this text that could be the answer"
    yield ""
    yield " ".join(map(reply.spelled, reply.question.question))
    yield ""
    words = []
    for token, weight, strength in zip(reply.shown, reply.attention, share(reply.attention), strict=True):
        word = reply.spelled(token) + (f" ({100 * weight:.0f} %)" if weight >= MARKED else "")
        fade = round(255 - 175 * strength)
        words.append(click.style(word, fg=(0, 0, 0), bg=(255, fade, fade // 2)) if strength > 0.1 else word)
    yield " ".join(words)


STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --ground: #fff; --heat: 213, 94, 0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --ground: #15181c; --heat: 255, 147, 64; } }
body { font: 16px/1.9 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 46rem; margin: 2rem auto;
  padding: 0 1rem }
h1 { font-size: 1.3rem } table { border-collapse: collapse; line-height: 1.4 } td { padding: .15rem .8rem .15rem 0 }
.bar { display: inline-block; height: .7rem; background: rgb(var(--heat)) } .w { border-radius: .2rem; padding: .05rem .1rem }
blockquote { margin: 1rem 0; padding-left: 1rem; border-left: 3px solid rgb(var(--heat)) } .note { opacity: .75; font-size: .9rem }
"""


def page(reply: Reply, top: int) -> str:
    """One page that needs nothing else to be read."""
    rows = "".join(
        f"<tr><td>{rank}</td><td>{html.escape(one.name or one.entity)}{' ✓' if one.entity == reply.question.answer else ''}</td>"
        f'<td>{100 * one.probability:.1f} %</td><td><span class="bar" style="width:{10 * one.probability:.2f}rem"></span></td></tr>'
        for rank, one in enumerate(reply.candidates[:top], start=1)
    )
    text = " ".join(
        f'<span class="w" style="background:rgba(var(--heat),{0.85 * strength:.3f})" title="{100 * weight:.1f} %">'
        f"{html.escape(reply.spelled(token))}</span>"
        for token, weight, strength in zip(reply.shown, reply.attention, share(reply.attention), strict=True)
    )
    question = html.escape(" ".join(map(reply.spelled, reply.question.question)))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{TITLE}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body><h1>{TITLE}</h1>'
        f"<blockquote>{question}</blockquote><table>{rows}</table><p>{text}</p>"
        '<p class="note">Colour: the share of the attention relative to the largest; point at a word to see its own. Entities were '
        "anonymous when the reader saw them.</p></body></html>\n"
    )
