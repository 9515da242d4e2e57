"""Where does the compiled CPU kernel come from?

A wheel brings it. Elsewhere the first use compiles it into the user's cache, for this machine's CPU alone, and later ones find it
there. One process at a time compiles it, and the library gets its final name once it is complete.
"""

import contextlib
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

import torch

from multint.locks import locked
from multint.publish import publish, remove_leftovers, replacing, temporary

SOURCES = Path(__file__).with_name("csrc")  # operators.cpp knows torch, kernels*.cpp the arithmetic, walk.cpp neither
# in a folder of its own: beside build.py, whatever walks through a package's modules would import it as one
SHIPPED = Path(__file__).parent / "lib" / "multint_cpu.so"
TORCH = Path(torch.__file__).parent

COMPILERS = ("c++", "g++", "clang++")
COMMON = ("-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math", "-pthread", "-pipe")
TARGET = ("-DTORCH_TARGET_VERSION=0x020b000000000000ULL",)  # the stable ABI of torch 2.11, the oldest we take
LINK = ("-shared", "-pthread", "-Wl,-z,defs", "-ltorch_cpu")  # without an rpath: import torch has loaded that library
_AVX2 = ("-mavx2", "-mfma")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mprefer-vector-width=512")
LEVELS = {"base": (), "avx2": _AVX2, "avx512": _AVX512, "avx512bf16": (*_AVX512, "-mavx512bf16")}  # each includes those before it
SECONDS = 25  # what a first build takes on two cores


class Unavailable(RuntimeError):
    """There is no compiled kernel and none can be made; the message says why and what would help."""


def library() -> Path:
    """The compiled kernel: the one shipped, else the one in the cache, compiled now if it is not there."""
    answer = _answer()
    if isinstance(answer, str):
        raise Unavailable(answer)
    return answer


@functools.cache  # a failure too: layers ask at every call
def _answer() -> Path | str:
    try:
        return SHIPPED if SHIPPED.exists() else _cached()
    except Unavailable as reason:
        return str(reason)


def machine_levels() -> tuple[str, ...]:
    """The instruction-set levels there are on this kind of machine, lowest first: all a wheel brings."""
    return tuple(LEVELS) if platform.machine() in ("x86_64", "AMD64") else ("base",)


def best_level(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The highest level of this machine's CPU."""
    has: set[str] = set()
    with contextlib.suppress(OSError), cpuinfo.open() as lines:
        has = next((set(line.split()) for line in lines if line.startswith("flags")), has)
    return [level for level in machine_levels() if _needs(level) <= has][-1]


def _needs(level: str) -> set[str]:
    """A level's instruction sets in the words of /proc/cpuinfo, which has an underscore where compilers have none."""
    return {flag[2:].replace("avx512bf16", "avx512_bf16") for flag in LEVELS[level] if "=" not in flag}


# ------------------------------------------------------------------------------------------------------------------ cache


def cache_folder() -> Path:
    """Where kernels compiled at first use are kept; it may be deleted at any time."""
    chosen, xdg = os.environ.get("MULTINT_CACHE"), os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(chosen).expanduser() if chosen else Path(xdg or Path.home() / ".cache") / "multint"
    except RuntimeError as error:
        raise Unavailable(f"no folder for the compiled CPU kernel ({error}); set MULTINT_CACHE to one") from error
    return base.absolute() / "kernels"


def _cached() -> Path:
    """The build of these sources for this torch, compiler and CPU, made now if it is not there."""
    level, folder = best_level(), cache_folder()
    name = f"cpu-{level}-{_digest(level)}"
    try:
        command = compiler()
    except Unavailable:
        # what was built with a compiler serves where there is none: the nodes of a cluster share a home
        for build in sorted(folder.glob(f"{name}-*.so")):
            return build
        raise
    try:
        out = folder / f"{name}-{_sha256([_identity(command, folder)])[:8]}.so"
        return out if out.exists() else _built(out, level, command)
    except OSError as error:
        what = f"cannot keep the compiled CPU kernel in {folder} ({error})"
        raise Unavailable(f"{what}; set MULTINT_CACHE to a folder that can be written") from error


def _built(out: Path, level: str, command: Sequence[str]) -> Path:
    """Compile into the cache, unless another process has done so by the time it is our turn."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out.with_name(f".{out.name}.lock")) as alone:
        if not out.exists():
            if alone:
                remove_leftovers(out.parent, out.name)
            print(f"multint: compiling the CPU kernel, once for this machine (about {SECONDS} s)", file=sys.stderr, flush=True)
            compile_library(out, [level], SOURCES, command)
    return out


def _digest(level: str) -> str:
    """What a build depends on beside the compiler, in 20 characters."""
    texts = sorted(path for path in SOURCES.glob("*") if path.suffix in (".cpp", ".h"))
    if not texts:
        raise Unavailable(f"no sources of the CPU kernel in {SOURCES}; install multint anew")
    settings = repr((COMMON, TARGET, LINK, level, LEVELS[level], str(torch.__version__), platform.machine()))
    return _sha256([settings, *(part for path in texts for part in (path.name, path.read_bytes()))])[:20]


def _sha256(parts: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        raw = os.fsencode(part)
        digest.update(b"%d:" % len(raw) + raw)  # the length, so that two parts cannot pass for two others
    return digest.hexdigest()


# --------------------------------------------------------------------------------------------------------------- compiler


def compiler() -> list[str]:
    """The command of the C++ compiler: CXX, else the first of COMPILERS on the path."""
    if sys.platform != "linux":
        raise Unavailable(f"the CPU kernel is compiled on Linux only at present, this is {sys.platform}; use backend='reference'")
    chosen = os.environ.get("CXX", "").strip()
    for command in [chosen.split()] if chosen else [[name] for name in COMPILERS]:
        found = shutil.which(command[0])
        if found:
            return [os.path.abspath(found), *command[1:]]
    what = f"CXX is {chosen!r}, which is not there" if chosen else f"none of {', '.join(COMPILERS)} is on the path, nor is CXX set"
    way_out = "install g++ 10 or newer (package g++ or gcc-c++), or set CXX to the command of a compiler"
    raise Unavailable(f"no C++ compiler for the CPU kernel: {what}; {way_out}")


def _identity(command: Sequence[str], folder: Path) -> str:
    """The compiler's command and what it says of its version, asked once and then noted beside the builds."""
    facts = os.stat(command[0])
    # a wrapper that calls another compiler from now on goes unseen, and no harm: the former one's build is as good
    note = folder / f"compiler-{_sha256([*command, f'{facts.st_mtime_ns} {facts.st_size}'])[:16]}.txt"
    with contextlib.suppress(OSError):
        return note.read_bytes().decode(errors="surrogateescape")
    with _start([*command, "--version"], None, subprocess.PIPE) as process:
        identity = f"{shlex.join(command)}\n{process.communicate()[0].decode(errors='replace')}"
    with contextlib.suppress(OSError):  # a cache that is full of builds and read-only is still of use
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(note) as out:
            out.write(identity.encode(errors="surrogateescape"))
    return identity


def _start(command: Sequence[str], folder: Path | None, out: IO[bytes] | int) -> subprocess.Popen[bytes]:
    env = {**os.environ, "LC_ALL": "C"}  # its messages are searched for the word "error"
    try:
        return subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env)
    except OSError as error:
        raise Unavailable(f"the compiler {command[0]} does not start ({error}); set CXX to another") from error


# ---------------------------------------------------------------------------------------------------------------- compile


def compile_library(
    out: Path, levels: Sequence[str], sources: Path = SOURCES, command: Sequence[str] | None = None, torch_folder: Path = TORCH
) -> Path:
    """Compile each kernels*.cpp once for each level and the other sources once, side by side, and link them into ``out``.

    ``command`` is the compiler's; ``torch_folder`` has torch's include and lib.
    """
    for level in levels:
        if level not in LEVELS:
            raise ValueError(f"Unknown level {level!r}. Select from {', '.join(map(repr, LEVELS))}.")
    # Lowest first, for the linker too: of a function that several objects bring (templates, inline ones) it keeps the first copy,
    # so whatever a level calls was compiled for that level or a lower one.
    chosen = [level for level in LEVELS if level in levels]
    command = command or compiler()
    out = out.absolute()
    work, log = temporary(out), out.with_suffix(".log")
    work.mkdir()
    try:
        kernels = sorted(path.stem for path in sources.glob("kernels*.cpp"))
        plain = sorted(path.stem for path in sources.glob("*.cpp") if path.stem not in {"operators", *kernels})
        units = {"operators": _operators(chosen, torch_folder), **{name: ["-c", f"{name}.cpp"] for name in plain}}
        units |= {f"{level}-{kernel}": _kernel(level, kernel) for level in chosen for kernel in kernels}
        objects = [str(work / f"{name}.o") for name in units]
        linked = work / "library.so"
        _run([[*command, *COMMON, *unit, "-o", o] for unit, o in zip(units.values(), objects, strict=True)], sources, work, log)
        _run([[*command, *objects, f"-L{(torch_folder / 'lib').absolute()}", *LINK, "-o", str(linked)]], sources, work, log)
        publish(linked, out)
        log.unlink(missing_ok=True)  # of an earlier attempt
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return out


def _operators(levels: Sequence[str], torch_folder: Path) -> list[str]:
    have = [f"-DMULTINT_HAVE_{level.upper()}" for level in levels]
    include = (torch_folder / "include").resolve()  # as compilers name what lies in it
    # the prefix map keeps this machine's paths out of the library, and so out of a wheel
    return [*TARGET, *have, "-isystem", str(include), f"-fmacro-prefix-map={include}/=", "-c", "operators.cpp"]


def _kernel(level: str, kernel: str) -> list[str]:
    return [*LEVELS[level], f"-DMULTINT_LEVEL={level}", "-c", f"{kernel}.cpp"]


def _run(commands: Sequence[Sequence[str]], folder: Path, work: Path, log: Path) -> None:
    """Run compiler commands side by side in ``folder``, one per core; if one fails, what it prints is kept in ``log``."""
    running: list[subprocess.Popen[bytes]] = []
    prints = [work / f"{k}.txt" for k in range(len(commands))]
    cores = os.cpu_count() or 1
    try:
        for command, path in zip(commands, prints, strict=True):
            if len(running) >= cores:
                running[-cores].wait()  # it began before the others
            with path.open("wb") as out:
                running.append(_start(command, folder, out))
        codes = [process.wait() for process in running]
    finally:
        for process in running:
            process.kill()  # on the way out of an interrupt; none is running otherwise
            process.wait()
    failed = [k for k, code in enumerate(codes) if code]
    if failed:
        texts = [f"{shlex.join(commands[k])}\n{prints[k].read_text(errors='replace')}\nexit status {codes[k]}\n" for k in failed]
        log.write_text("\n".join(texts))
        what = f"{commands[0][0]} cannot compile the CPU kernel: {_complaint(prints[failed[0]])}"
        raise Unavailable(f"{what}; the full log is {log}, and CXX may name another compiler")


def _complaint(path: Path) -> str:
    """The first lines of a compiler's output that tell what is wrong."""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"\berror\b|undefined reference|cannot find", line)]
    return " | ".join((telling or lines or ["it says nothing"])[:3])
