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

# Three forks on two cores, since they wait for programs as often as they compute; what measures
# time runs at the end, with nothing beside it (tests/side_by_side.py).
test: install
	$(BIN)/python -m pytest --forks 3

# Every sweep, planted fault and browser as well, and properties with all their examples.
test-all: install
	$(BIN)/python -m pytest --forks 2 -m "" --timeout 3600 --hypothesis-profile whole

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
