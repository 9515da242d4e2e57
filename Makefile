# Two commands do everything on a new machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
# the shape checker, which tracers (torch.compile, export) cannot see through: tests marked `traced` run without it
CHECKED := --jaxtyping-packages=multint,beartype.beartype
# a machine with a GPU may be one where nothing can be installed: there its own Python runs the source tree
GPU_PYTHON = $(if $(wildcard $(BIN)/python),$(BIN)/python,PYTHONPATH=$(CURDIR)/src $(PYTHON))

.PHONY: setup demo test lint test-checked test-traced results docs equations bench-loop bench-cpu bench-gpu test-gpu kernels wheel clean

setup: .venv/.ready

# torch goes first and alone, so that nothing resolved later can bring another build of it
.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(f"multint needs Python 3.10 or newer, {sys.executable} is {v[0]}.{v[1]}; try: make PYTHON=python3.12 ..." if v < (3, 10) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/multint demo

test: lint test-checked test-traced

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-checked: setup
	$(BIN)/python -m pytest $(CHECKED) -n 2 -m 'not traced'

test-traced: setup
	$(BIN)/python -m pytest -n 2 -m traced

# docs/equations.md and the pointwise C++ are printed from cells.py; a test compares them
equations: setup
	$(BIN)/python -m multint.scan.generate

# what the training loop costs beyond the bare update, into results/bench/
bench-loop: setup
	$(BIN)/python benchmarks/loop.py

# the layers beside torch.nn on this CPU, each line with its limit, into results/bench/
bench-cpu: setup
	$(BIN)/python benchmarks/cpu.py

# the layers beside cuDNN on this GPU, each line with its limit, into results/bench/; BENCH passes options: BENCH='--part 1/2'
bench-gpu:
	$(GPU_PYTHON) benchmarks/gpu.py $(BENCH)

# the tests that need a GPU; the ignored warning is pytest's where pytest-timeout is not installed
test-gpu:
	$(GPU_PYTHON) -m pytest -p no:cacheprovider -W 'ignore:Unknown config option:pytest.PytestConfigWarning' tests/test_gpu.py tests/test_gpu_backend.py tests/test_gpu_streams.py tests/paper/test_engine_gpu.py

# compile the CPU kernel for this machine now rather than at its first use
kernels: setup
	$(BIN)/python -c 'from multint.scan import build; print(build.library())'

# a wheel with the kernel for every CPU of this kind of machine, against the torch in .venv; then loaded from where it installs to
wheel: setup
	rm -rf build dist/multint-*-linux_*.whl
	MULTINT_WHEEL=1 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir dist .
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/check dist/multint-*-linux_*.whl
	PYTHONPATH=build/check $(BIN)/python -c 'import torch; from multint.scan import build; assert build.SHIPPED.exists(), build.SHIPPED; torch.ops.load_library(build.library())'
	rm -rf build

# tables and figures of README and docs from the records; a test compares them
results: setup
	$(BIN)/multint report --refresh README.md --refresh docs/results.md
	cp results/figures/figure-1.svg docs/_static/figure-1.svg

docs: setup
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

clean:
	rm -rf .venv build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
