"""What does a wheel hold beside the Python files?

Nothing, as a rule: the CPU kernel is compiled at first use, so installing needs neither a compiler nor torch. With MULTINT_WHEEL=1
(`make wheel`) it holds the kernel for every CPU of this kind of machine, compiled against the torch at hand.
"""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


def builder() -> ModuleType:
    """multint.scan.build, without loading the packages around it: they are what is being built."""
    for name in ("multint", "multint.scan"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(ROOT.joinpath("src", *name.split(".")))]
    return importlib.import_module("multint.scan.build")


class WithKernel(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            build = builder()
            out = Path(self.build_lib) / "multint" / build.SHIPPED.relative_to(build.SOURCES.parents[1])
            out.parent.mkdir(parents=True, exist_ok=True)
            build.compile_library(out, build.machine_levels())


class OfThisPlatform(Distribution):
    def has_ext_modules(self) -> bool:  # also gives the build a folder of its own, so the kernel cannot slip into a plain wheel
        return True


class AnyPython(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        # not cp310-abi3: torch loads the kernel, which calls nothing of Python's, so it is tied to no interpreter and no version
        return "py3", "none", super().get_tag()[2]


if os.environ.get("MULTINT_WHEEL") == "1":
    setup(distclass=OfThisPlatform, cmdclass={"build_py": WithKernel, "bdist_wheel": AnyPython})
else:
    setup()
