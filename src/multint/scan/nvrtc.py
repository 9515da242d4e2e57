"""How is CUDA source compiled and launched without a CUDA toolkit or a C++ extension?

By NVRTC, the compiler that torch's CUDA wheels bring, and the driver's own interface, both through ctypes. What was compiled is
kept beside the CPU kernel's builds.
"""

import contextlib
import ctypes
import functools
import glob
import hashlib
import os
import site
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multint.publish import replacing
from multint.scan import build

SONAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
TOOLKITS = ("/usr/local/cuda/lib64/libnvrtc.so*", "/usr/local/cuda/targets/*/lib/libnvrtc.so*")
WAY_OUT = "install the package nvidia-cuda-nvrtc (torch's CUDA wheels bring it)"

# numbers of cuda.h
MAX_DYNAMIC_SHARED_SIZE_BYTES, NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 8, 14
COOPERATIVE, CLUSTER_DIMENSION = 2, 4
CAPTURE_RELAXED = 2
PORTABLE_CLUSTER = 8


class Unavailable(RuntimeError):
    """NVRTC or the driver is not there; the message says what would help."""


class NotCompiled(RuntimeError):
    """The compiler refused the source; the message has its log."""


# --------------------------------------------------------------------------------------------------------------- compiler


@functools.cache
def compiler() -> ctypes.CDLL:
    """NVRTC: the one torch has loaded, else the first that loads."""
    for path in [*_loaded(), *SONAMES, *_installed()]:
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path)
            library.nvrtcGetErrorString.restype = ctypes.c_char_p
            _load_builtins()
            return library
    raise Unavailable(f"NVRTC is not found, the compiler of the persistent kernels; {WAY_OUT}")


def _loaded() -> list[str]:
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return []
    return list(dict.fromkeys(path for line in lines if _is_library(path := line.split(maxsplit=5)[-1])))


def _load_builtins() -> None:
    """NVRTC asks for this library by its bare name, which finds it only if it is loaded: in a wheel it lies on no search path."""
    for folder in dict.fromkeys(os.path.dirname(path) for path in _loaded()):
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), "libnvrtc-builtins.so*"))):
            with contextlib.suppress(OSError):
                ctypes.CDLL(path)


def _is_library(path: str) -> bool:
    name = os.path.basename(path)  # beside it lie builds for other purposes: libnvrtc-builtins.so, libnvrtc.alt.so
    return name.startswith("libnvrtc.so") and "static" not in name


def _installed() -> list[str]:
    folders = dict.fromkeys([*sys.path, *site.getsitepackages(), site.getusersitepackages()])
    patterns = [
        *(os.path.join(glob.escape(folder), "nvidia", "*", "lib", "libnvrtc.so*") for folder in folders if folder),
        *TOOLKITS,
    ]
    return [path for pattern in patterns for path in sorted(glob.glob(pattern), reverse=True) if _is_library(path)]


def version() -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _nvrtc("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _nvrtc(name: str, *args: Any) -> None:
    code = getattr(compiler(), name)(*args)
    if code:
        raise RuntimeError(f"{name}: {compiler().nvrtcGetErrorString(code).decode()}")


def compile_source(name: str, source: str, headers: Mapping[str, str], options: Sequence[str]) -> tuple[bytes, str]:
    """The cubin, and what the compiler had to say."""
    program = ctypes.c_void_p()
    texts = (ctypes.c_char_p * len(headers))(*(text.encode() for text in headers.values()))
    names = (ctypes.c_char_p * len(headers))(*(header.encode() for header in headers))
    _nvrtc("nvrtcCreateProgram", ctypes.byref(program), source.encode(), name.encode(), len(headers), texts, names)
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = compiler().nvrtcCompileProgram(program, len(options), given)
        log = _answer(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if failed:
            why = compiler().nvrtcGetErrorString(failed).decode()
            raise NotCompiled(
                f"NVRTC {'.'.join(map(str, version()))} does not compile {name} with {' '.join(options)} ({why}):\n{log}"
            )
        return _answer(program, "CUBIN"), log
    finally:
        _nvrtc("nvrtcDestroyProgram", ctypes.byref(program))


def _answer(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _nvrtc(f"nvrtcGet{what}Size", program, ctypes.byref(size))
    text = ctypes.create_string_buffer(max(size.value, 1))
    _nvrtc(f"nvrtcGet{what}", program, text)
    return text.raw[: size.value]


# ------------------------------------------------------------------------------------------------------------------ cache


@dataclass(frozen=True)
class Source:
    """One program: what the compiler gets, and the name its builds are kept under."""

    name: str  # of the file
    text: str
    headers: tuple[tuple[str, str], ...]
    options: tuple[str, ...]

    @property
    def path(self) -> Path | None:
        """Where its cubin is kept; None where no folder can be found."""
        try:
            folder = build.cache_folder()
        except build.Unavailable:
            return None
        parts = (self.name, self.text, repr(self.headers), repr(self.options), repr(version()))
        digest = hashlib.sha256(repr([hashlib.sha256(part.encode()).hexdigest() for part in parts]).encode()).hexdigest()
        return folder / f"{Path(self.name).stem}-{digest[:20]}.cubin"

    def cubin(self, anew: bool = False) -> bytes:
        """Compiled, or as compiled before; ``anew`` where what was kept turned out to be no good."""
        path = self.path
        if path is not None and not anew:
            with contextlib.suppress(OSError):
                kept = path.read_bytes()
                if kept.startswith(b"\x7fELF"):
                    return kept
        made, _ = compile_source(self.name, self.text, dict(self.headers), self.options)
        if path is not None:
            with contextlib.suppress(OSError):  # without a place to keep it, it is compiled again next time
                path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(path) as out:
                    out.write(made)
        return made


# ----------------------------------------------------------------------------------------------------------------- driver


class _Attribute(ctypes.Structure):  # CUlaunchAttribute
    _fields_ = [("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


class _Config(ctypes.Structure):  # CUlaunchConfig
    _fields_ = [
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


@functools.cache
def driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Unavailable(f"the CUDA driver is not found ({error}); install NVIDIA's driver") from error


def cuda(name: str, *args: Any) -> None:
    code = getattr(driver(), name)(*args)
    if code:
        raise RuntimeError(f"{name}: {_error(code)}")


def _error(code: int) -> str:
    words = []
    for ask in (driver().cuGetErrorName, driver().cuGetErrorString):
        text = ctypes.c_char_p()
        ask(code, ctypes.byref(text))
        words.append((text.value or b"unknown").decode(errors="replace"))
    return f"{words[0]} ({code}): {words[1]}"


def enter_context(device: int) -> None:
    """Make the device's context, which torch uses, this thread's, if it has none yet: a thread of autograd may be new to CUDA."""
    context = ctypes.c_void_p()
    cuda("cuCtxGetCurrent", ctypes.byref(context))
    if not context.value:
        cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        cuda("cuCtxSetCurrent", context)


@contextlib.contextmanager
def outside_capture() -> Iterator[None]:
    """Let this thread load a program even while a stream is captured into a graph: loading is no work of any stream."""
    mode = ctypes.c_int(CAPTURE_RELAXED)
    cuda("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    try:
        yield
    finally:
        cuda("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))


@dataclass(frozen=True)
class Kernel:
    """A function on one device, and how all its launches are made."""

    device: int
    function: ctypes.c_void_p
    threads: int
    shared: int  # bytes
    cluster: int  # blocks
    attributes: Any  # of a launch, an array of _Attribute

    def launch(self, grid: tuple[int, int], parameters: ctypes.Structure, stream: int) -> None:
        enter_context(self.device)
        config = self._config(grid, stream, self.attributes)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(parameters))
        cuda("cuLaunchKernelEx", ctypes.byref(config), self.function, pointers, None)

    def clusters_at_once(self, grid: tuple[int, int]) -> int:
        """How many of its clusters fit on the idle GPU."""
        count, config = ctypes.c_int(), self._config(grid, 0, _attributes(self.cluster, cooperative=False))
        with outside_capture():
            enter_context(self.device)
            cuda("cuOccupancyMaxActiveClusters", ctypes.byref(count), self.function, ctypes.byref(config))
        return count.value

    def _config(self, grid: tuple[int, int], stream: int, attributes: Any) -> _Config:
        return _Config(*grid, 1, self.threads, 1, 1, self.shared, stream, attributes, len(attributes))


_loading = threading.Lock()


def load(
    source: Source, function: str, device: int, *, threads: int, shared: int = 0, cluster: int = 1, cooperative: bool = False
) -> Kernel:
    """A function of a program, on a device; the device must be torch's current one. Programs stay loaded."""
    with _loading, outside_capture():
        enter_context(device)
        try:
            module = _module(source.cubin())
        except RuntimeError as error:
            if isinstance(error, NotCompiled | Unavailable):
                raise
            module = _module(source.cubin(anew=True))
        handle = ctypes.c_void_p()
        cuda("cuModuleGetFunction", ctypes.byref(handle), module, function.encode())
        if shared:
            cuda("cuFuncSetAttribute", handle, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
        if cluster > PORTABLE_CLUSTER:
            cuda("cuFuncSetAttribute", handle, NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
    return Kernel(device, handle, threads, shared, cluster, _attributes(cluster, cooperative))


def _module(cubin: bytes) -> ctypes.c_void_p:
    module = ctypes.c_void_p()
    cuda("cuModuleLoadData", ctypes.byref(module), cubin)
    return module


def _attributes(cluster: int, cooperative: bool) -> Any:
    values = [(COOPERATIVE, (1,))] if cooperative else []
    if cluster > 1:
        values.append((CLUSTER_DIMENSION, (cluster, 1, 1)))  # type: ignore[arg-type]
    return (_Attribute * len(values))(*(_Attribute(number, 0, (ctypes.c_uint * 16)(*value)) for number, value in values))
