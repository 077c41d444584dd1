# make tune | test | test-slow | check | bench: each works alone on a machine that has only
# Python >= 3.11, make and a C compiler.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: tune install test test-slow check bench accuracy clean

tune: install
	$(BIN)/ridgeline tune --out ridgeline-tune -- examples/train_gpt.py

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,serve,compress,kubernetes,examples,frameworks,trace,dev]'
	touch $@

# They measure time, so nothing may run beside them.
ALONE := tests/faults tests/tune/test_ab_run.py tests/tune/test_tuner.py
test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ALONE:%=--ignore=%)
	$(BIN)/python -m pytest $(ALONE)

test-slow: install
	$(BIN)/python -m pytest -m slow --timeout 3600

check: install
	$(BIN)/ruff check src tests bench examples
	$(BIN)/ruff format --check src tests bench examples
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install
	for file in bench/*.py; do $(BIN)/python $$file || exit 1; done

# Refit the cost models to the published runs, cross-validate, write the accuracy pages.
PUBLISHED ?= ../shared/data/published_training.csv
SERVED ?= ../shared/data/published_serving.csv
accuracy: install
	$(BIN)/python bench/refit_training.py $(PUBLISHED) --write
	$(BIN)/python bench/accuracy_training.py $(PUBLISHED)
	$(BIN)/python bench/refit_serving.py $(SERVED) --write
	$(BIN)/python bench/accuracy_serving.py $(SERVED)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
