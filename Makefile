# The commands people type. `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

PROFILE ?= native
VARIANT ?= cpu

venv_stamp := .venv/.installed
bin := .venv/bin
server := $(bin)/python docker/build-llama-server --profile $(PROFILE) --variant $(VARIANT) $(if $(PATCHES),--patches $(PATCHES))

.PHONY: help
help: ## this list
	@echo "make TARGET, where TARGET is one of:"
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' Makefile | expand -t 16

.PHONY: demo
demo: $(venv_stamp) ## build, bring a small model, serve it on 127.0.0.1:8080 and ask it; ONCE=1 stops after the answer
	@scripts/demo $(if $(ONCE),--once)

.PHONY: test
test: lint server unit integration ## lint, types, unit tests, tests on real parts

.PHONY: lint
lint: $(venv_stamp) ## ruff, mypy, shellcheck, hadolint, yamllint, actionlint, zizmor, dashboards, rules
	@$(bin)/ruff check --quiet .
	@$(bin)/ruff format --check --quiet . || { echo "error: unformatted files; format them with: make format" >&2; exit 1; }
	@$(bin)/mypy
	@$(bin)/shellcheck $$(grep -lsE '^#!/.*\b(ba)?sh$$' docker/* scripts/* .ci/*)
	@$(bin)/hadolint docker/Dockerfile
	@$(bin)/yamllint -c .yamllint.yaml compose.yaml compose.docker.yaml docker models .github
	@$(bin)/actionlint -shellcheck $(bin)/shellcheck .github/workflows/*.yml
	@said=$$($(bin)/zizmor --quiet --no-progress --offline --persona pedantic .github) || { echo "$$said" >&2; exit 1; }
	@PYTHONPATH=docker $(bin)/python -m dashboards --check
	@$(MAKE) --no-print-directory rules

.PHONY: rules
rules: ## Prometheus' rules and their tests, where promtool is installed
	@if command -v promtool >/dev/null; then \
	  promtool check rules docker/prometheus/rules/*.yml >/dev/null; \
	  promtool test rules docker/prometheus/tests/*.yml >/dev/null; \
	else echo "NOT TESTED: Prometheus' rules. promtool is not installed (Debian: prometheus)."; fi

.PHONY: dashboards
dashboards: $(venv_stamp) ## write docker/grafana/dashboards from docker/dashboards
	@PYTHONPATH=docker $(bin)/python -m dashboards

.PHONY: pictures
pictures: $(venv_stamp) ## draw docs/pictures from what Prometheus answers: of a stack of its own, or PROMETHEUS=URL MINUTES=15
	@PYTHONPATH=docker $(bin)/python -m bench.pictures \
	  $(if $(PROMETHEUS),--prometheus $(PROMETHEUS) --minutes $(or $(MINUTES),15))

.PHONY: format
format: $(venv_stamp) ## format the Python code
	@$(bin)/ruff check --quiet --fix-only .
	@$(bin)/ruff format --quiet .

.PHONY: unit
unit: $(venv_stamp) ## unit tests; ARGS="..." goes to pytest
	@$(bin)/python -m pytest -q -x -n auto --dist worksteal tests/unit $(ARGS)

.PHONY: integration
integration: $(venv_stamp) ## tests on the built server, and on a Docker engine if one answers; ARGS="..." goes to pytest
	@server=$${SLIPSTREAM_TEST_SERVER:-}; unpatched=$${SLIPSTREAM_TEST_SERVER_UNPATCHED:-}; \
	if [[ -z $$server ]]; then server=$$($(server) --print-path); fi; \
	if [[ -z $$unpatched ]]; then unpatched=$$($(server) --patches none --print-path); fi; \
	engine=0; timeout 20 docker info >/dev/null 2>&1 || engine=$$?; \
	SLIPSTREAM_TEST_SERVER=$$server SLIPSTREAM_TEST_SERVER_UNPATCHED=$$unpatched \
	  $(bin)/python -m pytest -q -rs tests/integration $(ARGS); \
	if (( engine )); then \
	  printf '\n%s\n' \
	    "*** SKIPPED: every test of the images and of compose.yaml. No Docker engine answers 'docker info'." \
	    "*** Start one, or as root: make engine"; \
	fi

.PHONY: soak
soak: $(venv_stamp) ## five minutes of storm over real servers; SOAK_SECONDS=300 SEED=1
	@server=$${SLIPSTREAM_TEST_SERVER:-}; if [[ -z $$server ]]; then server=$$($(server) --print-path); fi; \
	SLIPSTREAM_TEST_SERVER=$$server \
	  $(bin)/python -m tests.support.storm --seconds $(or $(SOAK_SECONDS),300) --seed $(or $(SEED),1)

.PHONY: bench
bench: $(venv_stamp) ## measurements; ARGS="..." goes to python -m bench
	@$(bin)/python -m bench $(ARGS)

.PHONY: server
server: $(venv_stamp) ## build llama-server; PATCHES=none for an unpatched one, PROFILE=portable for any processor
	@$(server)

.PHONY: server-path
server-path: $(venv_stamp) ## print the path of the built server (make -s server-path), built on demand
	@$(server) --print-path

.PHONY: venv
venv: $(venv_stamp) ## .venv with everything from PyPI, tools to build with included

$(venv_stamp): requirements/dev.txt pyproject.toml scripts/venv
	@PYTHON="$(PYTHON)" scripts/venv >&2
	@touch $@

.PHONY: engine
engine: ## as root: install and start a Docker engine, unless one answers
	@docker/engine

.PHONY: images
images: ## build images; VARIANT="cpu cuda rocm-gfx906 orchestrator", ARGS="..." goes to scripts/images
	@scripts/images build $(VARIANT) $(ARGS)

.PHONY: push
push: ## build images and push them: REGISTRY=ghcr.io/someone, VARIANT and ARGS as for images
	@scripts/images push $(VARIANT) $(if $(REGISTRY),--registry $(REGISTRY)) $(ARGS)

.PHONY: smoke
smoke: $(venv_stamp) ## try images out on the CPU; IMAGE="slipstream:cpu"
	@for image in $(or $(IMAGE),slipstream:$(firstword $(VARIANT))); do scripts/images smoke "$$image" $(ARGS); done

.PHONY: requirements
requirements: $(venv_stamp) ## lock the newest versions that pyproject.toml allows
	@scripts/lock-requirements --upgrade

.PHONY: clean
clean: ## remove .venv and what tools left here; built servers stay in the cache
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "built servers and downloads stay in $${SLIPSTREAM_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/slipstream}"
