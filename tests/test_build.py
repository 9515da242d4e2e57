"""The compiled kernel is built once, built again when it must be, and when it cannot be, the reason says what to do."""

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
import torch

import multint
from multint.scan import build

ROOT = Path(__file__).parents[1]
OPERATORS = """
#include "answer.h"
extern "C" __attribute__((visibility("default"))) int answer() {
    return ANSWER
#ifdef MULTINT_HAVE_BASE
        + base()
#endif
#ifdef MULTINT_HAVE_AVX2
        + avx2()
#endif
        ;
}
"""
KERNELS = '#include "answer.h"\nint MULTINT_LEVEL() { return 1; }\n'
HEADER = "#define ANSWER 40\nint base();\nint avx2();\n"

REAL = next((found for name in build.COMPILERS if (found := shutil.which(name))), None)
compiles = pytest.mark.skipif(REAL is None or sys.platform != "linux", reason="needs a C++ compiler on Linux")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Small sources, an empty cache and a compiler that counts its calls."""
    sources = tmp_path / "csrc"
    sources.mkdir()
    for name, text in {"operators.cpp": OPERATORS, "kernels.cpp": KERNELS, "answer.h": HEADER}.items():
        (sources / name).write_text(text)
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setattr(build, "SHIPPED", tmp_path / "not shipped")
    monkeypatch.setattr(build, "best_level", lambda: "base")
    monkeypatch.setenv("MULTINT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(counting(tmp_path / "compiler")))
    build._answer.cache_clear()
    yield tmp_path
    build._answer.cache_clear()


def counting(path, before=""):
    """A compiler that writes its calls down; ``before`` is what it does first when it compiles."""
    calls, real = shlex.quote(str(path.parent / "calls")), shlex.quote(str(REAL))
    path.write_text(
        f'#!/bin/sh\necho "$*" >> {calls}\ncase "$*" in --version) ;; *) : ; {before or ":"} ;; esac\nexec {real} "$@"\n'
    )
    path.chmod(0o755)
    return path


def calls(place):
    """The compiler's calls up to now, which are forgotten: those for its version, for objects and for libraries."""
    path = place / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    kinds = ["version" if line == "--version" else "object" if " -c " in line else "library" for line in lines]
    return {kind: kinds.count(kind) for kind in kinds}


def answer(library):
    return ctypes.CDLL(str(library)).answer()


def again():
    """library(), as a new process would answer it."""
    build._answer.cache_clear()
    return build.library()


def reason():
    with pytest.raises(build.Unavailable) as caught:
        again()
    return str(caught.value)


# a process of its own, in which modules with their places stand for torch and the package: importing torch takes seconds
PROCESS = f"""
import sys, types
from pathlib import Path
sys.modules["torch"] = types.ModuleType("torch")
sys.modules["torch"].__file__, sys.modules["torch"].__version__ = {torch.__file__!r}, {str(torch.__version__)!r}
sys.modules["multint"] = types.ModuleType("multint")
sys.modules["multint"].__path__ = [{str(Path(multint.__file__).parent)!r}]
import importlib.util
spec = importlib.util.spec_from_file_location("build", {build.__file__!r})
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)
build.SOURCES, build.SHIPPED, build.best_level = Path(sys.argv[1]), Path("not shipped"), lambda: "base"
print(build.library())
"""


def process(place):
    command = [sys.executable, "-c", PROCESS, str(place / "csrc")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


@compiles
def test_a_build_is_found_again_without_the_compiler_being_called(place, capfd):
    first = build.library()
    assert answer(first) == 41
    assert calls(place) == {"version": 1, "object": 2, "library": 1}
    assert capfd.readouterr().err.startswith("multint: compiling the CPU kernel, once for this machine")
    assert again() == first
    assert calls(place) == {}
    assert capfd.readouterr().err == ""


@compiles
@pytest.mark.parametrize("name", ["operators.cpp", "kernels.cpp", "answer.h"])
def test_a_changed_source_is_compiled_anew(place, name):
    first = build.library()
    path = place / "csrc" / name
    path.write_text(path.read_text().replace("40", "50").replace("return 1", "return 11").replace("ANSWER\n", "10 + ANSWER\n"))
    second = again()
    assert second != first
    assert answer(second) == 51


@compiles
def test_another_compiler_compiles_anew(place, monkeypatch):
    first = build.library()
    (place / "other").mkdir()
    monkeypatch.setenv("CXX", str(counting(place / "other" / "compiler")))
    assert again() != first
    assert calls(place / "other") == {"version": 1, "object": 2, "library": 1}


@compiles
def test_the_same_compiler_with_another_version_compiles_anew(place):
    first = build.library()
    compiler = place / "compiler"
    compiler.write_text(compiler.read_text().replace("--version)", "--version) echo 'the next one'"))
    assert again() != first


@compiles
def test_another_torch_compiles_anew(place, monkeypatch):
    first = build.library()
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    assert again() != first
    assert calls(place) == {"version": 1, "object": 4, "library": 2}


@compiles
def test_a_command_with_arguments_is_a_compiler(place, monkeypatch):
    monkeypatch.setenv("CXX", f"{place / 'compiler'} -DUNUSED")
    assert answer(build.library()) == 41
    assert "-DUNUSED" in (place / "calls").read_text()


@compiles
def test_two_processes_at_once_compile_once(place):
    counting(place / "compiler", "sleep 0.3")
    both = [process(place), process(place)]
    outputs = [running.communicate(timeout=60) for running in both]
    assert calls(place)["library"] == 1
    assert [running.returncode for running in both] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert sorted(len(err.splitlines()) for _, err in outputs) == [0, 1]
    assert answer(outputs[0][0].strip()) == 41


@compiles
def test_a_process_killed_half_way_leaves_nothing_that_passes_for_a_build(place):
    stop, reached = shlex.quote(str(place / "stop")), shlex.quote(str(place / "reached"))
    counting(place / "compiler", f"if [ -e {stop} ]; then touch {reached}; sleep 60; fi")
    (place / "stop").touch()
    running = process(place)
    until = time.monotonic() + 60
    while not (place / "reached").exists() and time.monotonic() < until:
        time.sleep(0.01)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    folder = place / "cache" / "kernels"
    assert (place / "reached").exists()
    assert any(folder.glob(".*~*"))
    assert not any(folder.glob("*.so"))
    (place / "stop").unlink()
    assert answer(build.library()) == 41
    assert not any(folder.glob(".*~*"))


@compiles
def test_a_build_serves_a_machine_that_has_no_compiler(place, monkeypatch):
    first = build.library()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(place))
    assert again() == first


@compiles
def test_a_read_only_cache_is_used(place, monkeypatch):
    first = build.library()
    for note in first.parent.glob("compiler-*"):
        note.unlink()

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert again() == first


def test_without_a_compiler_the_reason_names_cxx(place, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    assert "CXX is 'no-such-compiler -O3', which is not there" in reason()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(place))
    assert "none of c++, g++, clang++ is on the path" in reason()
    assert "set CXX" in reason()


def test_a_compiler_that_does_not_start_is_named(place, monkeypatch):
    broken = place / "broken"
    broken.write_bytes(b"\0")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert f"the compiler {broken} does not start" in reason()


@compiles
def test_a_compile_error_shows_the_compilers_line_and_where_the_rest_is(place):
    (place / "csrc" / "kernels.cpp").write_text("#error lanes are missing\n")
    said = reason()
    assert "kernels.cpp:1:2: error: #error lanes are missing" in said
    log = next((place / "cache" / "kernels").glob("*.log"))
    assert str(log) in said
    assert "#error lanes are missing" in log.read_text()
    assert [path for path in log.parent.iterdir() if path.suffix == ".so" or "~" in path.name] == []


@compiles
def test_a_link_error_shows_what_is_missing(place):
    (place / "csrc" / "kernels.cpp").write_text("// empty\n")
    assert "undefined reference to `base()'" in reason()


@compiles
def test_a_failure_is_remembered_in_the_process(place):
    (place / "csrc" / "kernels.cpp").write_text("#error no\n")
    first = reason()
    assert calls(place)["object"] == 2
    with pytest.raises(build.Unavailable) as second:
        build.library()
    assert str(second.value) == first
    assert calls(place) == {}


@compiles
def test_a_cache_that_cannot_be_written_is_named_with_the_way_out(place, monkeypatch):
    (place / "file").touch()
    monkeypatch.setenv("MULTINT_CACHE", str(place / "file"))
    assert f"cannot keep the compiled CPU kernel in {place / 'file' / 'kernels'}" in reason()
    assert "set MULTINT_CACHE to a folder that can be written" in reason()


def test_missing_sources_are_named(place):
    shutil.rmtree(place / "csrc")
    assert f"no sources of the CPU kernel in {place / 'csrc'}" in reason()


def test_other_systems_are_told_that_builds_are_for_linux(place, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "compiled on Linux only at present, this is darwin" in reason()


def test_a_shipped_kernel_is_used_as_it_is(place, monkeypatch):
    shipped = place / "multint_cpu.so"
    shipped.touch()
    monkeypatch.setattr(build, "SHIPPED", shipped)
    assert build.library() == shipped
    assert calls(place) == {}


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("MULTINT_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert build.cache_folder() == tmp_path / "a" / "kernels"
    monkeypatch.delenv("MULTINT_CACHE")
    assert build.cache_folder() == tmp_path / "b" / "multint" / "kernels"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    assert build.cache_folder() == tmp_path / "c" / ".cache" / "multint" / "kernels"


@pytest.mark.parametrize(
    "machine, flags, level",
    [
        ("x86_64", "fpu sse2", "base"),
        ("x86_64", "fpu avx2", "base"),
        ("x86_64", "fpu fma avx2", "avx2"),
        ("x86_64", "fma avx2 avx512f avx512dq avx512bw", "avx2"),
        ("x86_64", "fma avx2 avx512f avx512dq avx512bw avx512vl", "avx512"),
        ("x86_64", "fma avx2 avx512f avx512dq avx512bw avx512vl avx512_bf16", "avx512bf16"),
        ("aarch64", "fma avx2", "base"),
    ],
)
def test_the_level_is_the_highest_the_cpu_has(monkeypatch, tmp_path, machine, flags, level):
    monkeypatch.setattr(build.platform, "machine", lambda: machine)
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: none\n\n")
    assert build.best_level(tmp_path / "cpuinfo") == level
    assert build.best_level(tmp_path / "absent") == "base"


@pytest.mark.skipif("x86_64" not in build.platform.machine(), reason="needs x86-64's levels")
@compiles
def test_several_levels_are_linked_into_one_library_lowest_first(place):
    assert answer(build.compile_library(place / "both.so", ["avx2", "base"], place / "csrc")) == 42
    assert calls(place) == {"object": 3, "library": 1}
    build.compile_library(place / "both.so", ["avx2", "base"], place / "csrc")
    linked = (place / "calls").read_text().splitlines()[-1]
    assert linked.index("operators.o") < linked.index("base-kernels.o") < linked.index("avx2-kernels.o")


@compiles
@pytest.mark.parametrize("cores", [1, 2, 64])
def test_kernels_may_be_spread_over_files(place, monkeypatch, cores):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    (place / "csrc" / "kernels.cpp").rename(place / "csrc" / "kernels_base.cpp")
    (place / "csrc" / "kernels_more.cpp").write_text("int avx2() { return 2; }\n")
    (place / "csrc" / "operators.cpp").write_text(OPERATORS.replace("MULTINT_HAVE_AVX2", "MULTINT_HAVE_BASE"))
    assert answer(build.library()) == 43
    assert calls(place) == {"version": 1, "object": 3, "library": 1}


@compiles
def test_the_library_holds_no_paths_of_the_machine_it_was_made_on(place):
    (place / "torch" / "include").mkdir(parents=True)
    (place / "torch" / "include" / "where.h").write_text("#pragma once\ninline const char* header() { return __FILE__; }\n")
    (place / "torch" / "lib").symlink_to(build.TORCH / "lib")
    longer = place / "compilers shorten this to the real name"
    longer.symlink_to(place / "torch")
    text = '#include <where.h>\nextern "C" __attribute__((visibility("default"))) const char* {0}() {{ return {1}; }}\n'
    (place / "csrc" / "operators.cpp").write_text(text.format("theirs", "header()") + text.format("ours", "__FILE__"))
    made = build.compile_library(place / "out.so", ["base"], place / "csrc", torch_folder=longer)
    assert b"operators.cpp" in made.read_bytes()
    assert b"where.h" in made.read_bytes()
    assert os.fsencode(place) not in made.read_bytes()


def test_an_unknown_level_is_refused(tmp_path):
    with pytest.raises(ValueError, match="Unknown level 'sse9'. Select from 'base', 'avx2', 'avx512', 'avx512bf16'."):
        build.compile_library(tmp_path / "out.so", ["sse9"])


def test_no_build_is_tuned_to_the_machine_it_is_made_on():
    flags = [*build.COMMON, *build.TARGET, *build.LINK, *(flag for level in build.LEVELS.values() for flag in level)]
    assert not [flag for flag in flags if flag.startswith(("-march", "-mtune", "-mcpu")) or "fast-math" in flag or "rpath" in flag]
    files = [
        Path(build.__file__),
        ROOT / "setup.py",
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
        *Path(build.__file__).parent.glob("csrc/*"),
    ]
    assert not [path.name for path in files if "march=native" in path.read_text()]


# ------------------------------------------------------------------------------------------------------------------ wheel


@pytest.fixture
def tree(tmp_path):
    """What a wheel is made of, with small sources for the kernel."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for path in (ROOT / "src" / "multint").rglob("*"):
        if path.suffix in (".py", ".html", ".typed"):
            target = tmp_path / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    sources = tmp_path / "src" / "multint" / "scan" / "csrc"
    sources.mkdir()
    for name, text in {"operators.cpp": OPERATORS, "kernels.cpp": KERNELS, "answer.h": HEADER}.items():
        (sources / name).write_text(text)
    return tmp_path


def made(tree, kind, **env):
    """What setuptools makes from a tree, a "wheel" or an "sdist"."""
    pytest.importorskip("setuptools", minversion="77")
    shutil.rmtree(tree / "dist", ignore_errors=True)
    command = [sys.executable, "-c", f"from setuptools import build_meta; build_meta.build_{kind}('dist')"]
    done = subprocess.run(command, cwd=tree, env={**os.environ, **env}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list((tree / "dist").iterdir())


def wheel(tree, **env):
    """The wheel made from a tree, and the names of its files."""
    (path,) = made(tree, "wheel", **env)
    with zipfile.ZipFile(path) as content:
        return path, content.namelist()


SOURCE_FILES = {f"multint/scan/csrc/{name}" for name in ("operators.cpp", "kernels.cpp", "answer.h")}


@compiles
def test_a_wheel_ships_the_kernel_if_asked_and_a_plain_one_needs_no_compiler(tree):
    path, names = wheel(tree, MULTINT_WHEEL="1")
    assert path.name.split("-", 2)[2].startswith("py3-none-linux_")
    assert {"multint/scan/lib/multint_cpu.so", *SOURCE_FILES} <= set(names)
    with zipfile.ZipFile(path) as content:
        library = content.extract("multint/scan/lib/multint_cpu.so", tree / "unpacked")
    assert answer(library) == 40 + min(2, len(build.machine_levels()))
    assert str(ROOT).encode() not in Path(library).read_bytes()
    # after it, in the same tree
    path, names = wheel(tree, CXX="no-such-compiler", PYTHONPATH=str(without_torch(tree)))
    assert path.name.endswith("-py3-none-any.whl")
    assert set(names) >= SOURCE_FILES
    assert not [name for name in names if name.endswith(".so")]


def test_an_sdist_holds_what_the_kernel_is_made_of(tree):
    (name,) = made(tree, "sdist")
    with tarfile.open(name) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    assert names >= {"setup.py", *(f"src/{name}" for name in SOURCE_FILES)}


def without_torch(tree):
    """A folder that hides torch from whoever imports it."""
    (tree / "hidden" / "torch").mkdir(parents=True)
    (tree / "hidden" / "torch" / "__init__.py").write_text("raise ImportError('a build of a plain wheel needs no torch')\n")
    return tree / "hidden"
