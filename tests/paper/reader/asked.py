"""A made-up corpus in the form of Hermann et al., a few kB: who went where last."""

import random

from multint.paper.reader.questions import Question, written

PLACES = ("garden", "kitchen", "office", "attic", "cellar", "hall")
FOLDERS = {"training": 160, "validation": 24, "test": 16}


def question(draw: random.Random, people: int = 6) -> Question:
    """Some people go to places; the question names a place and asks who is there."""
    who = draw.sample(range(people), 3)
    where = draw.sample(PLACES, 3)
    document = [token for i, place in zip(who, where, strict=True) for token in (f"@entity{i}", "went", "to", "the", place, ".")]
    k = draw.randrange(3)
    entities = {f"@entity{i}": f"Person {i}" for i in sorted(who)}
    return Question(tuple(document), ("@placeholder", "is", "in", "the", where[k], "."), f"@entity{who[k]}", entities, "a house")


def corpus(folder, counts=FOLDERS, seed=0):
    """Write the corpus below a folder; the path of its folder questions."""
    draw = random.Random(seed)
    for split, count in counts.items():
        (folder / "questions" / split).mkdir(parents=True)
        for i in range(count):
            (folder / "questions" / split / f"{i:04d}.question").write_text(written(question(draw)), encoding="utf-8")
    return folder / "questions"
