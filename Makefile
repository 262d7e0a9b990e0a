# On a machine with nothing but Python 3.11 or newer (and its venv module):
#   make train    a small Transformer learns real text on 8 simulated devices, in minutes
#   make test     lint, types, tests
# Another Python gets its own environment: make test PYTHON=python3.12

PYTHON ?= python3
VENV := .venv$(if $(filter python3,$(PYTHON)),,-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
TYPES := .cache/types

.PHONY: train test page pictures lint bench planner-report clean

train: $(VENV)/.run
	$(BIN)/meshkit train launch/configs/quickstart.toml
	$(BIN)/meshkit generate runs/quickstart "def "

test: lint
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

# The type checker sees the one import name of the wheel: meshkit, with models and launch inside.
lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	rm -rf $(TYPES)/meshkit && mkdir -p $(TYPES)/meshkit
	ln -s $(CURDIR)/meshkit/* $(CURDIR)/models $(CURDIR)/launch $(TYPES)/meshkit
	cd $(TYPES) && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache -p meshkit

bench: $(VENV)/.dev
	$(BIN)/python -m tests.bench

# The planner's predictions beside published measurements: make planner-report EVIDENCE=folder [JSON=1]
REPORT := .cache/planner-report
planner-report: $(VENV)/.dev
	$(BIN)/python -m meshkit.planner.evidence.report $(EVIDENCE) --out $(REPORT) $(if $(JSON),--json)

# The page of `meshkit view`, whose build is committed: needs Node 20 or newer; users don't.
page:
	cd meshkit/view/page && npm ci && npm run build

# The pictures of README.md and docs/learn.md, from the page in Chromium.
pictures: $(VENV)/.dev
	$(BIN)/python -m tests.view.pictures

clean:
	rm -rf .venv .venv-* .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info

# Two stages: a first run needs no test tools.
$(VENV)/.run: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("meshkit needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,hf,compile]'
	touch $@
