# make tune | test | test-all | check | docs | bench: each works alone on a machine that has only
# Python >= 3.11, make and a C compiler.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

# Every test that starts a program would compile all of it anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: tune install test test-all check docs bench accuracy clean

tune: install
	$(BIN)/ridgeline tune --out ridgeline-tune -- examples/train_gpt.py

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,serve,compress,export,kubernetes,studio,lessons,examples,frameworks,trace,dev]'
	touch $@

# First what may run side by side, three at a time on two cores (they wait for programs as often as
# they compute); then what measures time and wants the machine to itself, of the files that have it:
# to collect all others takes as long as to run it.
ALONE = $(shell grep -rl --include 'test_*.py' 'mark\.alone' tests)

test: install
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow and not alone"
	$(BIN)/python -m pytest -m "not slow and alone" $(ALONE)

# Every sweep, planted fault and browser as well, and properties with all their examples.
test-all: install
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not alone" --timeout 3600 --hypothesis-profile whole
	$(BIN)/python -m pytest -m alone --timeout 3600 --hypothesis-profile whole $(ALONE)

check: install docs
	$(BIN)/ruff check src tests bench examples
	$(BIN)/ruff format --check src tests bench examples
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site, into build/site; a warning is an error.
docs: install
	$(BIN)/ruff check docs/site
	$(BIN)/ruff format --check docs/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: install
	for file in bench/*.py; do $(BIN)/python $$file || exit 1; done

# Refit the cost models to the published runs, cross-validate, write the accuracy pages.
PUBLISHED ?= ../shared/data/published_training.csv
SERVED ?= ../shared/data/published_serving.csv ../shared/data/published_serving_more.csv
SEEN ?= ../shared/data/published_vision.csv.gz
accuracy: install
	$(BIN)/python bench/refit_training.py $(PUBLISHED) --write
	$(BIN)/python bench/accuracy_training.py $(PUBLISHED)
	$(BIN)/python bench/refit_serving.py $(SERVED) --write
	$(BIN)/python bench/accuracy_serving.py $(SERVED)
	$(BIN)/python bench/refit_vision.py $(SEEN) --write
	$(BIN)/python bench/accuracy_vision.py $(SEEN)
	PYTHONPATH=. $(BIN)/python bench/accuracy_measured.py ../shared/data

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
