# Everything runs in a virtual environment of its own, .venv, which the first command makes.
PYTHON ?= python3
BIN := .venv/bin
DEMO := runs/demo

.PHONY: demo test check docs bench release-check clean

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ceqr needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

demo: .venv/installed  ## Train on Breakout, evaluate, draw the learning curve, write the page that plays it.
	@if [ -e $(DEMO)/config.json ]; then $(BIN)/ceqr resume $(DEMO); else \
	  $(BIN)/ceqr train --env minatar/breakout --agent ceqr-dqn --preset quick --seeds 2 --out $(DEMO); fi
	$(BIN)/ceqr eval $(DEMO) --episodes 100
	@echo "The learning curve:"; $(BIN)/ceqr plot $(DEMO)
	@$(BIN)/ceqr watch $(DEMO) --out $(DEMO)/doubt.html --quiet
	@echo "The agent at play, with its doubt; open it in a browser:"; echo $(DEMO)/doubt.html

test: .venv/installed  ## All checks and all tests.
	$(MAKE) check
	$(BIN)/pytest -n 2 --dist worksteal

check: .venv/installed  ## Lint, formatting and types.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

docs: .venv/installed  ## The documentation site; open build/site/index.html.
	$(BIN)/python -m tools.docs.build

bench: .venv/installed  ## The training loop against its bare arithmetic.
	$(BIN)/ceqr bench

release-check:  ## Builds wheel and sdist, and uses them in clean environments: EXTRAS="minatar gymnax", PYTHON=python3.13.
	PYTHON=$(PYTHON) tools/release/check.sh $(EXTRAS)

clean:
	rm -rf .venv build dist
