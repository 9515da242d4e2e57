"""WikiCloze: pages out of a dump, text out of mark-up, entities, questions; always the same."""

import hashlib

import pytest

from multint.paper.reader import cloze, highlights
from multint.paper.reader.cloze import about, article, split_of
from multint.paper.reader.questions import ENTITY, PLACEHOLDER, number, sentences, written
from multint.paper.reader.text import anonymous, forms_of, names, words
from multint.paper.reader.wikipedia import Page, linked, name, pages, paragraphs

LINCOLN = """{{Infobox|name={{nested}}}}
[[Image:Lincoln.jpg|thumb|right|A [[portrait]] of him.]]
'''Abraham Lincoln''' was born in [[Kentucky]] and led the [[Union (American Civil War)|Union]] in the [[American Civil War]]. He \
died in [[1865]]&nbsp;in [[Washington, D.C.|Washington]].<ref name="x">A [[book]].</ref> His son was [[Robert Todd Lincoln|Robert]].

== Life ==
* [[A list]] is left out.
{| class="t"
| a table {| inner |}
|}
Lincoln left Kentucky when he was seven &mdash; see [http://example.org his papers]. The American Civil War began in [[April 12]]. \
Robert lived in Washington. <!-- not [[this]] --> The Union won, and Lincoln saw it. Mr. Smith met Robert in Kentucky, \
says [http://example.org].

== See also ==
[[Nothing]] after this counts. [[Kentucky]] neither.
[[de:Abraham Lincoln]]
"""


def dump(*titled: tuple[str, str]) -> bytes:
    body = "".join(
        f'<page>\n<title>{title}</title>\n<text xml:space="preserve">{text}</text>\n</page>\n'
        for title, text in ((t, x.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")) for t, x in titled)
    )
    return f"<mediawiki>\n{body}".encode()


def test_pages_are_articles_alone_however_the_dump_is_cut():
    content = dump(
        ("One", "text é"), ("Two", "#REDIRECT [[One]]"), ("Talk:One", "no"), ("Wikipedia talk:One", "no"), ("A & B", "a <ref>")
    )
    content += b"<page><title>Cut</title><text>never ends"
    whole = list(pages([content]))
    assert whole == [Page("One", "text é"), Page("A & B", "a <ref>")]
    for size in (1, 7, 64):
        assert list(pages(content[k : k + size] for k in range(0, len(content), size))) == whole


def test_mark_up_is_removed_and_links_are_kept():
    first, second = paragraphs(LINCOLN)
    assert first.startswith("Abraham Lincoln was born in [[Kentucky]]")
    assert "in [[1865]] in [[Washington, D.C.|Washington]]. His son" in first
    assert second.startswith("Lincoln left Kentucky when he was seven — see his papers. The")
    for gone in ("thumb", "Infobox", "list", "table", "this", "Nothing", "de:", "http", "<", "{"):
        assert gone not in first + second


def test_links_lead_to_titles_and_dates_are_words():
    tokens = linked("In [[1990]] the [[United States|U.S.]]'s [[radical]]s and [[Abraham lincoln#Youth|Lincoln]] met [[May 5]].")
    found = [(token.text, token.target) for token in tokens if token.target]
    assert found == [("U.S.", "United States"), ("radicals", "Radical"), ("Lincoln", "Abraham lincoln")]
    assert [token.text for token in tokens][:6] == ["In", "1990", "the", "U.S.", "'s", "radicals"]
    assert name("  us_state ") == "Us state"


def test_every_mention_becomes_its_entity():
    one = article(Page("Abraham Lincoln", LINCOLN))
    by_name = {title: entity for entity, title in one.entities.items()}
    assert set(by_name) == {
        "Abraham Lincoln",
        "Kentucky",
        "Union (American Civil War)",
        "American Civil War",
        "Washington, D.C.",
        "Robert Todd Lincoln",
    }
    lincoln, robert = by_name["Abraham Lincoln"], by_name["Robert Todd Lincoln"]
    assert one.lead[0][:4] == (lincoln, "was", "born", "in")
    assert " ".join(one.body[0]).startswith(f"{lincoln} left {by_name['Kentucky']} when he was seven")
    assert one.body[2] == (robert, "lived", "in", by_name["Washington, D.C."], ".")
    assert sorted(map(number, one.entities)) == list(range(6))
    assert not {token for sentence in (*one.lead, *one.body) for token in sentence} & {"lincoln", "kentucky", "robert", "union"}


def test_questions_hide_an_entity_that_the_rest_of_the_article_mentions():
    one = article(Page("Abraham Lincoln", LINCOLN))
    asked = list(about(one))
    assert len(asked) > 6
    for q in asked:
        assert PLACEHOLDER in q.question and q.answer not in q.question and q.answer in q.document
        assert set(q.entities) == {t for t in (*q.document, *q.question, q.answer) if ENTITY.fullmatch(t)}
        filled = tuple(q.answer if token == PLACEHOLDER else token for token in q.question)
        assert filled in (*one.lead, *one.body) and filled not in sentences(q.document)
    lead = [q for q in asked if q.document == tuple(token for part in one.body for token in part)]
    assert len(lead) == len({(q.question, q.answer) for q in lead}) >= 5
    assert any(q not in lead for q in asked)


def test_the_same_dump_gives_the_same_questions_for_ever():
    """If this changes, so must cloze.EDITION: prepared corpora are known by it."""
    made = list(cloze.questions([dump(("Abraham Lincoln", LINCOLN), ("Nobody", "{{empty}}"))]))
    assert {split for split, _ in made} == {split_of("Abraham Lincoln")}
    digest = hashlib.sha256("".join(written(q) for _, q in made).encode()).hexdigest()
    assert (cloze.EDITION, len(made), digest[:16]) == (1, 10, "2652585c123e3328")


def test_articles_and_not_questions_are_divided_into_splits():
    counts = {split: sum(split_of(f"Article {i}") == split for i in range(4000)) for split in ("train", "valid", "test")}
    assert abs(counts["valid"] - 200) < 60 and abs(counts["test"] - 200) < 60 and sum(counts.values()) == 4000


def test_words_of_running_text():
    assert words("U.S. troops, e.g. Mr. Smith's, won--1st of 1,000.5!") == [
        "U.S.", "troops", ",", "e.g.", "Mr.", "Smith", "'s", ",", "won", "--", "1st", "of", "1,000.5", "!",
    ]  # fmt: skip
    assert words("l'amérique neo-classical x2 _") == ["l'amérique", "neo-classical", "x2", "_"]


def test_the_longest_form_of_an_entity_wins():
    forms = forms_of([(["New", "York"], "New York"), (["New", "York", "Times"], "The Times"), (["the"], "Nothing"), (["x"], "X")])
    assert anonymous(["The", "new", "york", "TIMES", "of", "New", "York", "x"], forms) == [
        "the",
        "@@The Times",
        "of",
        "@@New York",
        "x",
    ]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("He met Bank of America . Bank rose .", ["Bank of America", "Bank of America"]),
        ("Dr. Anna Lee left . Lee slept .", ["Dr. Anna Lee", "Dr. Anna Lee"]),
        ("Snow fell . She came on Friday in March .", []),
        ("Paris shines . He likes Paris .", ["Paris", "Paris"]),
        ("Although Anna came , I'm sad .", ["Anna"]),
    ],
)
def test_names_are_found_by_their_capitals(text, expected):
    assert [entity for _, entity in names(text.split())] == expected


def test_highlights_ask_about_the_article():
    text = '(CNN)Anna Lee flew to Paris on Monday. Lee met Bob Ray in Paris. "It was fun," Ray said.'
    asked = list(highlights.about("row", text, ["Anna Lee flies to Paris .", "Bob Ray meets nobody else ."]))
    names_of = [(q.entities[q.answer], " ".join(q.question)) for q in asked]
    assert [who for who, _ in names_of] == ["Anna Lee", "Paris", "Bob Ray"]
    assert names_of[2][1] == "@placeholder meets nobody else ."
    lee = asked[1].question[0]
    assert asked[0].document.count(lee) == 2 and "cnn" not in asked[0].document
    table = "article,highlights,id\n" + '"Anna Lee flew. Anna Lee slept.","Anna Lee flies by day .",7\n'
    assert [q.source for q in highlights.questions(table)] == ["7"]
