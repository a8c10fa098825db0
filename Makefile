# Every target but `clean` makes the virtual environment first, and again what pyproject.toml changes in it.
#   make flowers ARGS="--epochs 10"     PYTHON: the interpreter to make the environment with     VENV: where it lies
#   make test WORKERS=4                 how many processes share the tests' files; of three, one may wait for something
#                                       while the others keep two cores busy

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
ARGS ?=
WORKERS ?= 3

OCLGRIND ?= oclgrind
# Oclgrind 21.10 can't run what LLVM makes of restrict and of its own floor; and kernels of GPUs take more than its 32 kB
# of local memory.
OCLGRIND_ARGS ?= --data-races --local-mem-size 65536 --build-options "-Drestrict= -DFLOOR=floor"
OCLGRIND_TESTS ?= --smallest tests/ops tests/runtime/test_self_test.py::test_results_of_few_blocks

PROCESSORS ?=

unexport PYTHONDONTWRITEBYTECODE  # or every process of a test would compile the package and the tests

.PHONY: flowers test test-processors torture docs notebooks oclgrind clean

flowers: $(VENV)/.flowers
	$(BIN)/edgelearn flowers $(ARGS)

# Beside pyright, the tests are collected once, so that the processes that share them find them compiled.
test: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --collect-only -qq $(ARGS) >/dev/null 2>&1 & \
		$(BIN)/pyright --pythonpath $(BIN)/python; status=$$?; wait; exit $$status
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# Ops, steps and bits as on older processors, for which this machine stands in: tests/processors.py.
#   make test-processors PROCESSORS=x86-64-v3 ARGS="tests/ops -x"
#   make test-processors ARGS=--smallest    of tests/ops, those that reach each kernel and each value of its macros
test-processors: $(VENV)/.test
	$(BIN)/python -m tests.processors $(PROCESSORS) -- --numprocesses $(WORKERS) --dist loadfile $(ARGS)

# Damaged files, kills, full disks, homes that can't be written, for 20 minutes: docs/guides/torture.md.
#   make torture ARGS="--minutes 5 --seed 7"
torture: $(VENV)/.test
	$(BIN)/python -m tests.torture $(ARGS)

# The manual, in build/site; a broken link or reference is an error.
docs: $(VENV)/.docs
	cp edgelearn/graph/network.schema.json docs
	$(BIN)/zensical build --strict --clean

notebooks: $(VENV)/.notebooks
	$(BIN)/jupyter trust notebooks/*.ipynb >/dev/null  # or their views have no buttons until the cells run again
	$(BIN)/jupyter lab --ServerApp.jpserver_extensions="{'edgelearn.workbench': True}" --LabApp.default_url=/edgelearn $(ARGS)

# Oclgrind exits with 0 whatever it finds, and its --log forgets what it found at every new context: so its reports
# go to stderr, past pytest (which keeps Python's own stderr), and a single line there is a failure, but for Clang's
# count of errors where it tries a CPU's instructions that Oclgrind lacks.
oclgrind: $(VENV)/.test
	@command -v $(OCLGRIND) >/dev/null || { echo "$(OCLGRIND) is not installed (Debian: apt install oclgrind)" >&2; exit 1; }
	@mkdir -p build
	$(OCLGRIND) $(OCLGRIND_ARGS) $(BIN)/python -m pytest --capture=sys -p tests.oclgrind $(OCLGRIND_TESTS) $(ARGS) 2>build/oclgrind.log \
		|| { cat build/oclgrind.log >&2; exit 1; }
	@if grep -vE "^[0-9]+ errors? generated\.$$" build/oclgrind.log >&2; then exit 1; fi

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find edgelearn tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.flowers: EXTRAS = tensorflow,audio
$(VENV)/.notebooks: EXTRAS = tensorflow,audio,notebooks
$(VENV)/.test: EXTRAS = tensorflow,audio,notebooks,test
$(VENV)/.docs: EXTRAS = docs

$(VENV)/.flowers $(VENV)/.notebooks $(VENV)/.test $(VENV)/.docs: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]'
	touch $@
