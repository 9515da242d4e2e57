"""What is known of a corpus before it is obtained?

Facts alone: nothing here touches a disk or a network. Each experiment describes its own corpora with these classes.
"""

import posixpath
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Address:
    """One place a file can be downloaded from.

    ``bytes`` and ``sha256`` are of what is served; where nobody publishes a sum, it is None, and the content is checked instead.
    ``member`` is the path inside the archive that is served.
    """

    url: str
    bytes: int | None = None
    sha256: str | None = None
    member: str | None = None

    @property
    def name(self) -> str:
        """The name of the downloaded file."""
        return posixpath.basename(urlsplit(self.url).path)


@dataclass(frozen=True)
class File:
    """One file of a corpus. ``bytes`` and ``sha256`` are of its content after any unpacking.

    Without ``addresses`` the file cannot be downloaded. ``head_of`` names longer files that begin with this one and serve as well.
    """

    name: str
    bytes: int
    sha256: str
    addresses: tuple[Address, ...] = ()
    head_of: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """A corpus and where it comes from. An experiment adds its own facts in a subclass.

    Args:
        folder: the folder of its files within the data folder.
        obtain: how a person obtains the files without this program.
        stands_for: the corpus of the paper that this one takes the place of; results must say so.
    """

    name: str
    folder: str
    files: tuple[File, ...]
    licence: str
    obtain: str
    detail: str
    stands_for: str | None = None
