# Everything runs in .venv, which `setup` makes and every other target asks for.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup test test-all check format smoke reproduce-en-ru reproduce-ght table benchmark clean

# nothing of a surrounding environment gets in
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# a Python that runs (a pyenv shim may not), is supported, and can make an environment
SUITS := import sys, ensurepip, venv; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))
# fairseq has a wheel for this platform (the marker of pyproject.toml); elsewhere it is built
HAS_WHEEL := import platform, sys; sys.exit((platform.system(), platform.machine()) != ("Linux", "x86_64"))

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | while IFS=$$'\t' read -r name text; do \
		printf '  make %-16s %s\n' "$$name" "$$text"; done

setup: .venv/stamp  ## make .venv with headlab and all it needs, once

.venv/stamp: pyproject.toml
	@if ! $(BIN)/python -c '$(SUITS)' 2>/dev/null; then \
		found=; \
		for name in python3.12 python3.11 python3 /usr/bin/python3.12 /usr/bin/python3.11; do \
			if "$$name" -c '$(SUITS)' >/dev/null 2>&1; then found=$$name; break; fi; \
		done; \
		if [ -z "$$found" ]; then \
			echo 'headlab: needs Python 3.11 or 3.12 with its venv module; install one so that python3.12 or python3.11 runs' >&2; \
			exit 1; \
		fi; \
		echo "making .venv with $$("$$found" --version), a few minutes the first time"; \
		rm -rf .venv; \
		"$$found" -m venv .venv; \
	fi
	@if ! $(BIN)/python -c '$(HAS_WHEEL)'; then \
		echo 'building fairseq from source: needs a C++ compiler'; \
		$(PIP) install 'torch>=2.6,<2.14' numpy cython setuptools wheel; \
		$(PIP) install --no-build-isolation fairseq-fixed==0.12.3.1; \
	fi
	@$(PIP) install --editable '.[dev]'
	@touch $@

test: setup  ## run the unit and integration tests
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not system"

test-all: setup  ## run all tests, the long ones too
	$(BIN)/python -m pytest

check: setup  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

smoke: setup  ## the whole pipeline at toy size, under two minutes: results/smoke/
	$(BIN)/headlab prune experiment=smoke

# EVIDENCE=1: scratch beside 10 heads, three seeds, three fixed penalties; resumable, in under 3 hours on two cores
PENALTIES := $(if $(EVIDENCE),0.003 0.005 0.01,$(if $(LAMBDA),0.005))
ifdef SMOKE
EN_RU := experiment=smoke
EN_RU_SCRATCH := 'prune.rivals={random: [4], scratch: [4]}'
EN_RU_SEEDS := $(EN_RU) seeds=[2,3] prune.targets=[4] $(EN_RU_SCRATCH)
EN_RU_LAMBDA := $(EN_RU) prune.targets=null prune.rivals={}
else
EN_RU := experiment=en_ru
EN_RU_SCRATCH := 'prune.rivals={random: [10, 4], scratch: [10]}'
EN_RU_SEEDS := experiment=en_ru_evidence
EN_RU_LAMBDA := experiment=en_ru_lambda
endif

reproduce-en-ru: setup  ## the English-Russian table: results/en_ru/ (LAMBDA=1, EVIDENCE=1: three seeds; SMOKE=1: toy size)
	$(BIN)/headlab prune $(EN_RU) $(if $(EVIDENCE),$(EN_RU_SCRATCH))
	$(if $(EVIDENCE),$(BIN)/headlab prune $(EN_RU_SEEDS))
	$(if $(PENALTIES),for penalty in $(PENALTIES); do $(BIN)/headlab prune $(EN_RU_LAMBDA) --penalty $$penalty; done)

PAIR := en_ru
SEEDS := $(if $(SMOKE)$(ABLATION),1,1 2 3)
ABLATIONS := $(sort $(basename $(notdir $(wildcard conf/experiment/ght_ablation/*.yaml))))
GHT_SIZE := $(if $(SMOKE),model=tiny optim=tiny optim.updates=100 data.pieces=500 data.valid_size=100 data.test_size=200 \
	prune.target=12 prune.selection_updates=20 prune.finetune_updates=10 prune.warmup=10 \
	score.bootstrap=200 score.speed_sentences=50 score.speed_rounds=2)
GHT_RESULTS := $(if $(SMOKE),ght_smoke,ght_$(if $(ABLATION),ablation_)$(PAIR))
# the table whose seeds tell which differences are resolved, where it is there already
GHT_WHOLE := $(if $(wildcard results/ght_$(PAIR)/rows.csv),$(if $(SMOKE),,ablation_of=ght_$(PAIR)))
GHT_RIVALS := 'prune.rivals={l0: [12], random: [12]}'
comma := ,
GHT_SEEDS := seeds=[$(subst $() ,$(comma),$(strip $(SEEDS)))]
GHT_RUN = $(BIN)/headlab prune data=$(PAIR) results=$(GHT_RESULTS) $(GHT_SEEDS) $(GHT_SIZE)

reproduce-ght: setup  ## Grouped Head Attention: results/ght_en_ru/ (PAIR=de_en, ABLATION=1, SMOKE=1, SEEDS="1 2 3")
	$(if $(ABLATION),for name in $(ABLATIONS); do $(GHT_RUN) $(GHT_WHOLE) experiment=ght_ablation/$$name; done,\
		$(GHT_RUN) experiment=ght $(if $(SMOKE),$(GHT_RIVALS)); $(GHT_RUN) experiment=ght_lite)

table: setup  ## make the tables and figures of results/en_ru/ again from its rows
	$(BIN)/headlab report en_ru

benchmark: setup  ## headlab beside stock fairseq: results/benchmark/ (SMOKE=1: toy size; ARGS="--rows train --pairs 7")
	$(BIN)/python scripts/benchmark.py $(if $(SMOKE),--smoke) $(ARGS)

clean:  ## remove .venv and caches; runs/ and results/ stay
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
