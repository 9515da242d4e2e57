"""How is one run kept?

A run is a folder: config, curve, log, checkpoints, and at the end a record that is also appended to results/runs.jsonl. A file gets
its name once it is complete, so the same command continues a run killed at any moment. One process at a time owns a folder.
"""

import csv
import fcntl
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from multint.publish import remove_leftovers, replacing

COLUMNS = ("update", "epoch", "seconds", "lr", "train", "valid", "grad_norm")
SHARED = "MULTINT_SHARED"  # the variable that says how many runs are on the device at a time
KEPT = 2  # checkpoints besides the best: the newest and, should it be damaged, the one before


class RunError(Exception):
    """What went wrong with a run, in one line that says the way out."""


class Stopped(RunError):
    """A run ended on a signal (SIGTERM, Ctrl-C), with a checkpoint of its last update."""

    CODE = 75  # of the process: BSD's "try again later"


@dataclass
class Progress:
    """Where a run stands: everything but tensors that the next update depends on."""

    update: int = 0
    epoch: int = 0
    position: int = 0  # batch within the epoch
    lr: float = 0.0
    best: float | None = None  # validation score of the best evaluation
    best_update: int = 0
    stale: int = 0  # evaluations without improvement, since the rate was last halved
    since_best: int = 0
    train_sum: float = 0.0  # of the losses since the last curve row
    train_count: float = 0.0
    rows: int = 0  # curve rows written
    seconds: float = 0.0  # wall time over all sessions
    work: float = 0.0  # in the task's unit, while throughput was measured: kernels compiled, neither evaluation nor checkpoint
    work_seconds: float = 0.0
    state: Any = None  # ``engine.outline`` of the carried state
    optimizer: dict[str, Any] = field(default_factory=dict)  # what the optimiser keeps beside tensors
    done: str = ""  # why training ended
    history: list[dict[str, Any]] = field(default_factory=list)


def digest(config: Mapping[str, Any]) -> str:
    """Eight hex digits of a configuration."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:8]


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """A disk that takes no more is answered in one line."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; make room and run the same command again") from error


def write_json(path: Path, value: Any) -> None:
    with room_for(path), replacing(path) as file:
        file.write((json.dumps(value, indent=1, default=str) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        what = "not a run folder" if path.name == "config.json" else "the run has not finished, or there is none"
        raise RunError(f"there is no {path}: {what}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from error
    return value


def environment() -> dict[str, Any]:
    """The machine and the code of a session."""
    commit, dirty = revision()
    cuda = torch.cuda.is_available()
    return {
        "commit": commit,
        "dirty": dirty,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if cuda else processor(),
        "threads": torch.get_num_threads(),
        "shared": shared(),
    }


def shared() -> int:
    """How many runs are on the device at a time, as the sweep that started them says."""
    said = os.environ.get(SHARED, "1")
    if not said.isdecimal() or int(said) < 1:
        raise RunError(
            f"{SHARED} says how many runs share the device, a whole number from 1 on, not {said!r}; unset it for one run"
        )
    return int(said)


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def revision() -> tuple[str, bool]:
    """Commit of the source tree and whether it was edited; a copy without its repository has MULTINT_COMMIT say it, + if edited."""
    said = os.environ.get("MULTINT_COMMIT")
    if said:
        return said.removesuffix("+"), said.endswith("+")

    def git(*words: str) -> str:
        package = Path(__file__).parents[1]
        return subprocess.run(["git", *words], cwd=package, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=10", "HEAD"), bool(git("status", "--porcelain", "--", "."))
    except (OSError, subprocess.CalledProcessError):
        return "unknown", False


class Run:
    """An open run folder. Use it as a context: it holds the folder's lock."""

    def __init__(self, root: Path, name: str, config: Mapping[str, Any]) -> None:
        self.name, self.config = name, json.loads(json.dumps(config, default=str))
        self.folder = root / name
        self.checkpoints = self.folder / "checkpoints"
        self.curve, self.log_file = self.folder / "curve.csv", self.folder / "log.txt"
        self.columns: tuple[str, ...] = COLUMNS
        self.record_file = self.folder / "record.json"
        self._pending = self.folder / "record.pending"
        self.curve_name = f"curves/{name.replace('/', '-')}.csv"  # beside the records
        self._lock: IO[str] | None = None

    def __enter__(self) -> "Run":
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / "lock").open("a+")
        except OSError as error:
            raise RunError(f"cannot write the run folder {self.folder}: {error.strerror}; choose another with --runs") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.seek(0)
            owner = self._lock.read().strip() or "unknown"
            raise RunError(
                f"{self.folder} is being written by another process ({owner}); wait for it or use another --runs"
            ) from None
        with room_for(self.folder / "lock"):
            self._lock.truncate(0)
            self._lock.write(f"pid {os.getpid()} on {platform.node()}")
            self._lock.flush()
        self._check_config()
        for folder in (self.folder, self.checkpoints):
            remove_leftovers(folder)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._lock is not None:
            self._lock.close()

    def _check_config(self) -> None:
        path = self.folder / "config.json"
        if not path.exists():
            write_json(path, self.config)
            return
        try:
            there = json.loads(path.read_text())
        except ValueError as error:
            raise RunError(f"{path} is not JSON ({error}); move the folder away and start again") from error
        for key in sorted({*there, *self.config}):
            if there.get(key) != self.config.get(key):
                raise RunError(
                    f"{self.folder} was started with {key}={there.get(key)!r}, now it is {self.config.get(key)!r}; "
                    "use the old value or another --runs folder"
                )

    def log(self, line: str) -> None:
        with room_for(self.log_file), self.log_file.open("a") as file:
            file.write(f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} {line}\n")

    # ---- the curve ----

    def cut_curve(self, rows: int) -> None:
        """Keep the first rows: those the checkpoint knows of."""
        lines = self.curve.read_text().splitlines(keepends=True)[: rows + 1] if self.curve.exists() else []
        with room_for(self.curve), replacing(self.curve) as file:
            file.write(("".join(lines) or ",".join(self.columns) + "\n").encode())

    def add_row(self, row: Mapping[str, Any]) -> None:
        with room_for(self.curve), self.curve.open("a", newline="") as file:
            csv.DictWriter(file, self.columns, lineterminator="\n").writerow(row)

    def board(self, update: int) -> Any:
        """TensorBoard's writer, which hides what a killed session wrote beyond ``update``; None where it is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None
        return SummaryWriter(str(self.folder / "tensorboard"), purge_step=update + 1)

    # ---- checkpoints ----

    def save(self, name: str, tensors: Mapping[str, Tensor], progress: Progress) -> Path:
        """Write a checkpoint under its final name or not at all."""
        from safetensors.torch import save

        copies = on_cpu(tensors)
        meta = {"run": self.name, "config": digest(self.config), "progress": json.dumps(asdict(progress))}
        path = self.checkpoints / f"{name}.safetensors"
        try:
            body = save(copies, {**meta, "crc": str(checksum(copies, meta))})
            with replacing(path) as file:
                file.write(body)
        except OSError as error:
            last = self._names()[:1]
            kept = f"the last good checkpoint is {last[0].name}" if last else "no checkpoint was written yet"
            raise RunError(f"cannot write {path}: {error.strerror}; {kept}; make room and run the same command again") from error
        return path

    def save_last(self, tensors: Mapping[str, Tensor], progress: Progress) -> None:
        self.save(f"{progress.update:09d}", tensors, progress)
        for old in self._names()[KEPT:]:
            old.unlink(missing_ok=True)

    def _names(self) -> list[Path]:
        """Checkpoints by update, newest first."""
        return sorted((p for p in self.checkpoints.glob("*.safetensors") if p.stem.isdigit()), reverse=True)

    def load_last(self) -> tuple[dict[str, Tensor], Progress] | None:
        """The newest checkpoint that is intact and of this run; the log and stderr name those refused."""
        for path in self._names():
            try:
                return self.load(path)
            except RunError as error:  # noqa: PERF203 - a handful of files
                self.log(str(error))
                print(f"multint: {error}", file=sys.stderr)
                with room_for(path):
                    path.rename(path.with_suffix(".refused"))  # or it would be kept in the place of a good one
        return None

    def load(self, path: Path) -> tuple[dict[str, Tensor], Progress]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as file:
                meta = file.metadata() or {}
                # copies, since kernels round by alignment and the file has none
                tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118 - not a mapping
        except (OSError, SafetensorError) as error:
            raise RunError(f"refused {path}: it is torn ({error})") from error
        if meta.get("run") != self.name or meta.get("config") != digest(self.config):
            raise RunError(f"refused {path}: it belongs to {meta.get('run', 'another program')}, not to {self.name} as configured")
        said = meta.pop("crc", None)
        if said not in (str(checksum(tensors, meta)), str(checksum(tensors))):  # the second is of files from before it knew meta
            raise RunError(f"refused {path}: its contents were altered (checksum differs)")
        return tensors, Progress(**json.loads(meta["progress"]))

    def load_best(self, update: int) -> tuple[dict[str, Tensor], Progress]:
        """The weights with the best score, of its own file or of the checkpoint of that update."""
        path = self.checkpoints / "best.safetensors"
        try:
            return self.load(path)
        except RunError as error:
            other = self.checkpoints / f"{update:09d}.safetensors"
            if other.exists():
                self.log(f"{error}; {other.name} has the same weights")
                tensors, progress = self.load(other)
                return {key: tensor for key, tensor in tensors.items() if key.startswith("model.")}, progress
            raise RunError(f"{error}, and its weights are nowhere else; delete {self.folder} and train again") from error

    # ---- the end ----

    def write_weights(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """The trained weights alone, in a file that safetensors reads."""
        from safetensors.torch import save

        path = self.folder / name
        with room_for(path), replacing(path) as file:
            file.write(save(on_cpu(tensors)))

    def finish(self, line: str, results: Path) -> None:
        """Append the record to results/runs.jsonl, once even if killed on the way, and copy the curve beside it."""
        if not self.record_file.exists():
            write_json(self._pending, {"line": line, "results": []})
            self.settle(results)

    def pending(self) -> bool:
        """Was the run killed while its record was written? Then ``settle`` is all that is left to do."""
        return self._pending.exists() and not self.record_file.exists()

    def settle(self, results: Path) -> None:
        """Append the pending record, unless an earlier session of this run already appended it, here or to other results."""
        left = read_json(self._pending)
        line, before = left["line"], [Path(folder) for folder in left["results"]]
        if not any(has_line(folder / "runs.jsonl", line) for folder in before):
            write_json(self._pending, {"line": line, "results": [*map(str, before), str(results.resolve())]})
            self.publish(line, results)
        write_json(self.record_file, json.loads(line))
        self._pending.unlink()

    def publish(self, line: str, results: Path) -> None:
        """Put a record, as JSON, and its curve among these results, unless they are there."""
        line = json.dumps(json.loads(line))
        if has_line(results / "runs.jsonl", line):
            return
        try:
            (results / "curves").mkdir(parents=True, exist_ok=True)
            if self.curve.exists():
                with replacing(results / self.curve_name) as file:
                    file.write(self.curve.read_bytes())
            append_line(results / "runs.jsonl", line)
        except OSError as error:
            what = f"cannot write the record under {results}: {error.strerror}"
            raise RunError(f"{what}; choose another with --results") from error


def on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as safetensors can write them: on the CPU, in order, and tied weights apart."""
    copies: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in tensors.items():
        part = tensor.detach().cpu().contiguous()
        place = part.untyped_storage().data_ptr()
        copies[name] = part.clone() if place in memory else part
        memory.add(place)
    return copies


def checksum(tensors: Mapping[str, Tensor], said: Mapping[str, str] | None = None) -> int:
    """CRC-32 of all tensors' bytes, by name, and of what is said of them."""
    crc = 0 if said is None else zlib.crc32(json.dumps(said, sort_keys=True).encode())
    for name in sorted(tensors):
        flat = tensors[name].contiguous().view(-1).view(torch.uint8) if tensors[name].numel() else torch.empty(0, dtype=torch.uint8)
        crc = zlib.crc32(flat.numpy().data, zlib.crc32(name.encode(), crc))
    return crc


def has_line(path: Path, line: str) -> bool:
    """Whether a file has a line; one that cannot be read has none."""
    try:
        return line.encode() in path.read_bytes().split(b"\n")
    except OSError:
        return False


def append_line(path: Path, line: str) -> None:
    """One line, once, at the end of a file several runs may write; a torn last line of a killed writer is closed first."""
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if has_line(path, line):
            return
        file.seek(0, os.SEEK_END)
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def handling(numbers: Iterable[int], handler: Callable[..., None]) -> Iterator[dict[int, Any]]:
    """Let ``handler`` hear these signals, in the main thread, which alone can; by number, the handlers it stands in for."""
    inside = threading.current_thread() is threading.main_thread()
    before = {int(number): signal.getsignal(number) or signal.SIG_DFL for number in (numbers if inside else ())}
    for number in before:
        signal.signal(number, handler)
    try:
        yield before
    finally:
        for number, old in before.items():
            signal.signal(number, old)


class Clock:
    """Wall seconds of this session."""

    def __init__(self) -> None:
        self.began = time.perf_counter()

    def __call__(self) -> float:
        return time.perf_counter() - self.began
