"""What are the tokens of running English text, and which of them are names?"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from multint.paper.reader.questions import ENDS, STOPWORDS

ABBREVIATED = (
    "Mr|Mrs|Ms|Dr|St|Sr|Jr|Gen|Col|Capt|Lt|Sgt|Rev|Hon|Prof|Sen|Gov|Mt|vs|etc|cf|ca|approx|No|Vol|Inc|Ltd|Co|Corp|Fig|eds|pp"
)
WORD = re.compile(
    rf"""(?:[^\W\d_]\.){{2,}}              # U.S., e.g.
    |\b(?:{ABBREVIATED}|[A-Z])\.(?=\s+\S)  # Dr. Who, J. Smith
    |\d+(?:[.,]\d+)*[^\W\d_]*              # 1,000.5, 2nd
    |['’]s\b
    |--+
    |[^\W\d_]+(?:['’-][^\W\d_]+)*?(?=['’]s\b|[^\w'’-]|$|['’-](?:\W|$)|_)
    |[^\W_]+
    |\S""",
    re.VERBOSE,
)


def words(text: str) -> list[str]:
    """Tokens as they are written.

    >>> words("Mary's dog, born 1,000 B.C., didn't bark.")
    ['Mary', "'s", 'dog', ',', 'born', '1,000', 'B.C.', ',', "didn't", 'bark', '.']
    """
    return WORD.findall(text)


# ---- mentions of entities ----

MARK = "@@"  # before the name of an entity that has no number yet
Forms = Mapping[str, Sequence[tuple[tuple[str, ...], str]]]


def forms_of(spelled: Iterable[tuple[Sequence[str], str]]) -> Forms:
    """How entities are written, in small letters, with their names; by the first word, the longest first.

    Of two entities with the same form the first has it. A form of stop words or of one letter is left out.
    """
    found: dict[tuple[str, ...], str] = {}
    for words_, entity in spelled:
        form = tuple(word.lower() for word in words_)
        if any(word not in STOPWORDS and len(word) > 1 for word in form):
            found.setdefault(form, entity)
    by_first: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for form, entity in sorted(found.items(), key=lambda item: -len(item[0])):
        by_first.setdefault(form[0], []).append((form, entity))
    return by_first


def anonymous(tokens: Sequence[str], forms: Forms) -> list[str]:
    """The tokens in small letters; every mention of an entity is one token with the entity's name after MARK.

    >>> anonymous("The King of Spain".split(), forms_of([(["King", "of", "Spain"], "Philip II")]))
    ['the', '@@Philip II']
    """
    small = [token.lower() for token in tokens]
    found: list[str] = []
    at = 0
    while at < len(small):
        fitting = (known for known in forms.get(small[at], ()) if tuple(small[at : at + len(known[0])]) == known[0])
        form, entity = next(fitting, ((), ""))
        found.append(MARK + entity if form else small[at])
        at += len(form) or 1
    return found


# ---- names ----

INNER = ("of", "de", "la", "van", "von", "al", "bin", "der", "du", "del")  # between two capitals they are part of a name
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday", "yesterday", "today", "tomorrow")
MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december")
OPENERS = ("although", "however", "meanwhile", "despite", "since", "according", "later", "earlier")  # of a sentence, before a name
NO_NAMES = STOPWORDS.union(DAYS, MONTHS, OPENERS)


def names(tokens: Sequence[str]) -> list[tuple[Sequence[str], str]]:
    """Names in a text, by its capitals alone, each with the name of its entity, for ``forms_of``.

    A name is a run of capitalised words; days and months are none. One word at the start of a sentence is a name if it is one
    inside a sentence too. A name that ends a longer one that came before is that one.

    >>> [name for _, name in names("Then Anna Karenina of Moscow left . Karenina smiled . Snow fell .".split())]
    ['Anna Karenina of Moscow', 'Anna Karenina of Moscow']
    """
    small = {token for token in tokens if token[:1].islower()}
    runs = [_bare(run, starts, small) for run, starts in _runs(tokens)]
    inside = {word for run, starts in runs if len(run) > 1 or not starts for word in run}
    found: list[tuple[Sequence[str], str]] = []
    longer: dict[str, str] = {}
    for run, starts in runs:
        if not run or (starts and len(run) == 1 and run[0] not in inside):
            continue
        entity = longer.get(" ".join(run), " ".join(run))
        found.append((run, entity))
        head = next((run[:i] for i, word in enumerate(run) if word in INNER), run)
        for k in range(1, len(head) + 1):
            longer.setdefault(" ".join(head[-k:]), entity)
    return found


def _bare(run: list[str], starts: bool, small: Collection[str]) -> tuple[list[str], bool]:
    """The run without what is no name at its beginning, and whether it still starts the sentence."""
    while run and (
        run[0].lower() in NO_NAMES or run[0] in INNER or "'" in run[0] or (starts and len(run) > 1 and run[0].lower() in small)
    ):
        run, starts = run[1:], False
    return run, starts


def _runs(tokens: Sequence[str]) -> list[tuple[list[str], bool]]:
    """Runs of capitalised words, and whether each starts a sentence."""
    found: list[tuple[list[str], bool]] = []
    start, going = True, False
    for i, token in enumerate(tokens):
        capital = token[:1].isupper()
        inner = going and token in INNER and tokens[i + 1 : i + 2] and tokens[i + 1][:1].isupper()
        if capital and not going:
            found.append(([token], start))
        elif going and (capital or inner):
            found[-1][0].append(token)
        going = capital or bool(inner)
        start = token in ENDS or (start and not token[:1].isalnum())
    return found
