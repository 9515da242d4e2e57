"""How well do the vectors of a sentence encoder serve other tasks? The evaluation of Table 2, for any encoder.

It follows the code of the skip-thought authors: SICK with a softmax over five grades, MSRP with logistic regression whose strength
ten folds choose by F1, and MR, CR, SUBJ and MPQA with nested folds. The encoder is never changed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from multint.paper.experiment import Metric, Result
from multint.paper.obtain import DataError
from multint.paper.skipthought import linear
from multint.paper.skipthought.labelled import CLASSES, SETS, Data, Pairs, Texts
from multint.shapes import Float

TASKS = tuple(SETS)
R, RHO, MSE = Metric("r", "r", lower=False), Metric("rho", "ρ", lower=False), Metric("mse", "MSE")
ACCURACY, F1 = Metric("acc", "Acc %", lower=False), Metric("f1", "F1 %", lower=False)
BY_CLASS = {name: Metric(name, f"{name.upper()} %", lower=False) for name in CLASSES}
SURFACE = "with surface features"  # a protocol of MSRP beside the paper's

Vectors = Float[Tensor, "_ d"]


# Vectors of texts, one row each, and the task they belong to
Encode = Callable[[Sequence[str], str], Vectors]


def any_encoder(function: Callable[[Sequence[str]], object], name: str) -> Encode:
    """An encoder made of a function from a list of texts to an array (texts, features)."""

    def encode(texts: Sequence[str], task: str) -> Vectors:
        found = function(list(texts))
        vectors = torch.as_tensor(found if isinstance(found, Tensor) else np.asarray(found)).detach().float().cpu()
        if vectors.dim() != 2 or len(vectors) != len(texts) or not vectors.shape[1]:
            raise DataError(
                f"{name} gave an array of shape {tuple(vectors.shape)} for {len(texts)} texts; give one row for each text"
            )
        if not vectors.isfinite().all():
            bad = int((~vectors.isfinite().all(1)).nonzero()[0])
            raise DataError(f"{name} gave a vector with NaN or inf, the first for {texts[bad][:60]!r}")
        return vectors

    return encode


def evaluate(
    encode: Encode, data: Data, tasks: Sequence[str] = TASKS, note: Callable[[str], None] = lambda line: None
) -> list[Result]:
    """The results of an encoder on tasks, in the paper's order. ``note`` is given a line on each."""
    scored: dict[str, Callable[[], list[Result]]] = {
        "sick": lambda: sick(encode, data.pairs("sick")).results(),
        "msrp": lambda: msrp(encode, data.pairs("msrp"), data.tokens("msrp")),
        **{name: lambda name=name: classes(name, encode, data.classes(name)) for name in CLASSES},  # type: ignore[misc]
    }
    for name in tasks:
        if name not in scored:
            raise DataError(f"no task {name!r}; there are {', '.join(scored)}")
    found = []
    for name in (name for name in scored if name in tasks):
        mine = scored[name]()
        note(
            f"{name}: "
            + ", ".join(f"{one.metric.unit} {one.value:.4g}" + f" ({one.protocol})" * bool(one.protocol) for one in mine)
        )
        found += mine
    return found


def distinct(encode: Encode, texts: Sequence[str], task: str) -> Vectors:
    """Vectors of texts of which many are equal; each is encoded once."""
    once = list(dict.fromkeys(texts))
    place = {text: k for k, text in enumerate(once)}
    return encode(once, task)[[place[text] for text in texts]]


def of_pairs(encode: Encode, parts: Mapping[str, Pairs], task: str) -> dict[str, Vectors]:
    """Features of pairs (u, v): \\|u − v\\| and u ⊙ v, side by side."""
    texts = [text for part in parts.values() for side in (part.a, part.b) for text in side]
    vectors = iter(distinct(encode, texts, task).split([len(part) for part in parts.values() for _ in range(2)]))
    return {name: torch.cat([(u - v).abs(), u * v], 1) for name, u, v in ((name, next(vectors), next(vectors)) for name in parts)}


# ---- SICK ----

BLOCK, ROWS, RATE = 100, 128, 1e-3  # epochs between two looks at validation, rows of a batch, rate: Keras's defaults in 2015
BLOCKS = 1000  # at most
GRADES = 5


class Relatedness(NamedTuple):
    """How well relatedness is predicted on validation and on test pairs."""

    valid: dict[str, float]
    test: dict[str, float]
    sizes: tuple[int, int]

    def results(self) -> list[Result]:
        return [Result(metric, self.test[metric.name], "sick", "test", self.sizes[1]) for metric in (R, RHO, MSE)]


def sick(encode: Encode, parts: Mapping[str, Pairs]) -> Relatedness:
    """A softmax over the grades 1 to 5, trained until Pearson's r of the validation pairs improves no more after 100 epochs."""
    x = of_pairs(encode, parts, "sick")
    order = linear.shuffled(len(parts["train"]))
    predict = graded(x["train"][torch.from_numpy(order)], parts["train"].y[order], x["valid"], parts["valid"].y)
    scores = {name: agreement(predict(x[name]), parts[name].y) for name in ("valid", "test")}
    return Relatedness(scores["valid"], scores["test"], (len(parts["valid"]), len(parts["test"])))


def soft_grades(y: NDArray[np.float64]) -> Float[Tensor, "n 5"]:
    """A number y as a distribution over the grades around it: 3.6 is 0.4 of grade 3 and 0.6 of grade 4."""
    low = np.floor(y).astype(int)
    found = np.zeros((len(y), GRADES + 1))
    rows = np.arange(len(y))
    found[rows, low - 1] = low - y + 1
    found[rows, low] = y - low
    return torch.from_numpy(found[:, :GRADES]).float()


def graded(
    x: Vectors, y: NDArray[np.float64], x_valid: Vectors, y_valid: NDArray[np.float64], blocks: int | None = None
) -> Callable[[Vectors], NDArray[np.float64]]:
    """Train the softmax with Adam; a function from features to expected grades."""
    x, target, x_valid = linear.biased(x), soft_grades(y), linear.biased(x_valid)
    w = torch.zeros(x.shape[1], GRADES)
    bound = (6 / (x.shape[1] - 1 + GRADES)) ** 0.5  # Glorot's
    w[:-1] = torch.empty(len(w) - 1, GRADES).uniform_(-bound, bound, generator=torch.Generator().manual_seed(linear.SEED))
    best, best_r, adam = w, -1.0, _Adam(w)
    for _ in range(BLOCKS if blocks is None else blocks):
        for _ in range(BLOCK):
            for rows in range(0, len(x), ROWS):
                part = x[rows : rows + ROWS]
                p = (part @ w).softmax(1)
                adam.step(part.T @ ((p - target[rows : rows + ROWS]) / len(part)))
        r = pearson(_expected(x_valid, w), y_valid)
        if not r > best_r:
            break
        best, best_r = w.clone(), r
    return lambda features: _expected(linear.biased(features), best)


def _expected(x: Vectors, w: Tensor) -> NDArray[np.float64]:
    grades = torch.arange(1, GRADES + 1, dtype=torch.float64)
    found: NDArray[np.float64] = ((x @ w).double().softmax(1) @ grades).numpy()
    return found


class _Adam:
    """Adam for one small tensor: torch's own spends most of its time around the arithmetic."""

    def __init__(self, w: Tensor, rate: float = RATE) -> None:
        self.w, self.rate, self.steps = w, rate, 0
        self.mean, self.square = torch.zeros_like(w), torch.zeros_like(w)

    def step(self, gradient: Tensor) -> None:
        self.steps += 1
        self.mean.lerp_(gradient, 0.1)
        self.square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        size = (1 - 0.999**self.steps) ** 0.5
        self.w.addcdiv_(self.mean, self.square.sqrt().add_(1e-8 * size), value=-self.rate * size / (1 - 0.9**self.steps))


# ---- agreement of numbers ----


def agreement(found: NDArray[np.float64], y: NDArray[np.float64]) -> dict[str, float]:
    return {"r": pearson(found, y), "rho": spearman(found, y), "mse": float(np.mean((found - y) ** 2))}


def pearson(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """0 where one side is constant."""
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size > 0 else 0.0


def spearman(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return pearson(_ranks(a), _ranks(b))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = (last - (counts - 1) / 2)[place]
    return ranks


# ---- MSRP ----


def msrp(encode: Encode, parts: Mapping[str, Pairs], tokens: Callable[[str], Sequence[str]]) -> list[Result]:
    """Accuracy and F1 on the test pairs, as in the paper's table and with six surface features beside the vectors."""
    x = of_pairs(encode, parts, "msrp")
    surface = {name: torch.from_numpy(surfaces(part, tokens)).float() for name, part in parts.items()}
    found = []
    for protocol, both in (("", x), (SURFACE, {name: torch.cat([x[name], surface[name]], 1) for name in parts})):
        scores = paraphrases(both["train"], parts["train"].y > 0, both["test"], parts["test"].y > 0)
        found += [Result(metric, value, "msrp", "test", len(parts["test"]), protocol) for metric, value in scores.items()]
    return found


def paraphrases(x: Vectors, y: NDArray[np.bool_], x_test: Vectors, y_test: NDArray[np.bool_]) -> dict[Metric, float]:
    """Logistic regression whose strength has the best mean F1 of ten shuffled folds."""
    positive = torch.from_numpy(y)
    x, x_test = linear.narrowed(linear.biased(x), linear.biased(x_test))
    order = linear.shuffled(len(x))
    tests = [order[part] for part in linear.folds(len(x))]
    uses = torch.ones(len(x), len(tests) + 1, dtype=torch.bool)  # the folds, then all rows
    for column, test in enumerate(tests):
        uses[test, column] = False
    best, guess, w = -1.0, np.zeros(len(x_test), bool), None
    for strength in linear.STRENGTHS:
        w = linear.fit(x, positive, uses, strength, w)
        inner = (x @ w > 0).numpy()
        score = float(np.mean([f1(inner[test, column], y[test]) for column, test in enumerate(tests)]))
        if score > best:
            best, guess = score, (x_test @ w[:, -1] > 0).numpy()
    return {ACCURACY: 100.0 * float((guess == y_test).mean()), F1: 100.0 * f1(guess, y_test)}


def f1(guess: NDArray[np.bool_], y: NDArray[np.bool_]) -> float:
    """Of the positive class; 0 where nothing is positive."""
    both = int((guess & y).sum())
    return 2 * both / max(int(guess.sum()) + int(y.sum()), 1)


def surfaces(pairs: Pairs, tokens: Callable[[str], Sequence[str]]) -> NDArray[np.float64]:
    """Six numbers on each pair: whether its numerals agree (three ways), how many tokens are shared, how long the sides are."""
    return np.array([_surface(tokens(a), tokens(b)) for a, b in zip(pairs.a, pairs.b, strict=True)])


def _surface(a: Sequence[str], b: Sequence[str]) -> tuple[float, ...]:
    in_a, in_b = ({token for token in side if _is_numeral(token)} for side in (a, b))
    shared = len(set(a) & set(b))
    same = in_a == in_b
    return (
        float(same),
        float(same and bool(in_a)),
        float(in_a <= in_b or in_b <= in_a),
        shared / max(len(set(a)), 1),
        shared / max(len(set(b)), 1),
        (len(a) / max(len(b), 1) + len(b) / max(len(a), 1)) / 2,
    )


def _is_numeral(token: str) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True


# ---- two classes ----


def classes(name: str, encode: Encode, texts: Texts) -> list[Result]:
    """The mean accuracy of ten nested folds."""
    order = linear.shuffled(len(texts))
    x = encode([texts.texts[k] for k in order], name)
    outcome = linear.nested(x, torch.from_numpy(texts.positive[order]))
    return [Result(BY_CLASS[name], 100.0 * float(np.mean(outcome.scores)), name, "test", len(texts))]
