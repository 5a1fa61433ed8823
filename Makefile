# Two commands: `make run` (raw text to BLEU on the embedded sample) and `make test`. Needs Python 3.11.4+, git and make.

SHELL := /bin/sh
BIN := $(CURDIR)/.venv/bin
STAMP := .venv/.installed
export MLFLOW_PORT PREFECT_PORT

# In a virtual environment, pip must install there, whatever the user's settings say.
export PIP_USER := no
unexport PIP_TARGET PIP_PREFIX

# The stages are run as `python -m pipeline <stage>`: the environment's python must be the first one found. After the
# folder was moved or copied, it is also the only program of the environment that works.
# They may keep what they compile: without its bytecode, each process takes seconds more to import torch. Another
# package `pipeline` on PYTHONPATH would come before this one.
VENV = PATH="$(BIN):$$PATH" VIRTUAL_ENV="$(CURDIR)/.venv" PYTHONDONTWRITEBYTECODE= PYTHONPATH=

# uv does not read pip's configuration: these give it the same indexes, and --index-strategy pip's choice among them.
pip_setting = $$("$(BIN)/python" -m pip config get :env:.$(1) 2>/dev/null || \
    "$(BIN)/python" -m pip config get global.$(1) 2>/dev/null)
INDEXES = UV_DEFAULT_INDEX="$${UV_DEFAULT_INDEX:-$(call pip_setting,index-url)}" \
    UV_INDEX="$${UV_INDEX:-$(call pip_setting,extra-index-url)}" \
    UV_FIND_LINKS="$${UV_FIND_LINKS:-$(call pip_setting,find-links)}"

.PHONY: run pages tour executed-tour setup test infra-test lint ui serve bench bench-gpu mutants soak plan clean
.DEFAULT_GOAL := run

# --quiet leaves out DVC's advice on git, which would stand before the summary, and its errors: dry runs print those.
# Where resolve has refused the settings, its output is missing, which is no second error.
run: setup
	@$(VENV) python -m pipeline.cli unlock
	@$(VENV) python -m dvc repro --quiet || { $(VENV) python -m dvc repro --dry resolve > /dev/null && \
	    test -e results/config.yaml && $(VENV) python -m dvc repro --dry > /dev/null; exit 1; }
	@$(VENV) python -m pipeline.cli summary

# The page as a folder for a static host.
pages:
	@test -e results/report.html || { echo "make: there is no results/report.html: run \`make run\` first" >&2; exit 1; }
	@rm -rf pages/figures && mkdir -p pages && cp -rLf results/figures pages && cp -f results/report.html pages/index.html && echo "pages/index.html"

# The notebook in Jupyter, which the lock does not have. The second target writes its outputs, which GitHub shows.
JUPYTER = "$(BIN)/python" -c 'import jupyterlab' 2>/dev/null || $(INDEXES) "$(BIN)/uv" pip install --quiet \
    --python "$(BIN)/python" --index-strategy unsafe-best-match -e '.[tour]'; $(VENV)

tour: setup
	@$(JUPYTER) jupyter lab nmt/tour.ipynb

executed-tour: setup
	@$(JUPYTER) python -m tests.bench.tour

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml infra/prefect-plugins.pth
	@test -e .git || { echo "make: this folder is no git repository, and DVC needs one: use git clone" >&2; exit 1; }
	@if ! "$(BIN)/python" -c 'import pip' 2>/dev/null; then \
	    found=; for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	        $$python -c 'import sys; sys.exit(sys.version_info < (3, 11, 4))' 2>/dev/null && found=$$python && break; \
	    done; \
	    test -n "$$found" || { \
	        echo "make: Python 3.11.4 or newer is needed (older ones cannot unpack archives safely), and neither python3" \
	             "nor python3.11 to python3.14 is that: install one and run make again" >&2; exit 1; }; \
	    echo "creating .venv with $$($$found --version)"; \
	    $$found -m venv --clear .venv || { \
	        echo "make: $$found cannot make virtual environments: install its venv module" \
	             "(python3-venv on Debian and Ubuntu) and run make again" >&2; exit 1; }; \
	fi
	@echo "installing the locked dependencies"
	@"$(BIN)/python" -m pip install --quiet --disable-pip-version-check "$$(grep '^uv==' requirements.lock)"
	@$(INDEXES) "$(BIN)/uv" pip install --quiet --python "$(BIN)/python" --index-strategy unsafe-best-match \
	    $(if $(TORCH),--torch-backend "$(TORCH)") -r requirements.lock
	@"$(BIN)/uv" pip install --quiet --python "$(BIN)/python" --offline --no-deps --no-build-isolation -e .
	@cp infra/prefect-plugins.pth "$$("$(BIN)/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	@touch $@

test: setup
	@$(VENV) pytest

# The tests of infra/, with those that start the servers of infra/compose.yaml.
infra-test: setup
	@$(VENV) pytest -n 0 tests/infra tests/soak/test_team.py

lint: setup
	@$(VENV) ruff check .
	@$(VENV) ruff format --check .
	@$(VENV) mypy
	@$(VENV) lint-imports

plan: setup
	@$(VENV) python -m pipeline.cli plan

# Start MLflow and Prefect on loopback, at $MLFLOW_PORT and $PREFECT_PORT, and print their password. Ctrl-C ends both.
ui: setup
	@$(VENV) python -m pipeline.cli ui

# The same, with a worker that runs Prefect's deployments.
serve: setup
	@$(VENV) python -m pipeline.cli serve

# Most benchmarks, in sizes for two cores; `python -m tests.bench.decoding --help` has the options of one.
bench: setup
	@$(VENV) python -m tests.bench.preprocessing --pairs 20000 --merges 8000
	@$(VENV) python -m tests.bench.training --row small --updates 20 --precision float32 bfloat16 --rounds 2
	@$(VENV) python -m tests.bench.profile --precision float32 bfloat16 --updates 4
	@$(VENV) python -m tests.bench.growth --pairs 1000 --rounds 1
	@$(VENV) python -m tests.bench.decoding --shape small --lines 200
	@$(VENV) python -m tests.bench.layers
	@$(VENV) python -m tests.bench.chain
	@$(VENV) python -m tests.bench.tracking --minutes 1
	@$(VENV) python -m tests.bench.state_store
	@$(VENV) python -m tests.bench.cluster --pairs 20000 --rounds 1
	@$(VENV) python -m tests.bench.pcfg --limit 100
	@$(VENV) python -m tests.bench.page

# Training on this machine's GPUs in one table, in ten minutes.
bench-gpu: setup
	@$(VENV) python -m tests.bench.gpu

# Change the code wrongly 600 times, and see whether a test fails. This takes about an
# hour on two cores; an interrupted run resumes.
mutants: setup
	@$(VENV) python tests/bench/mutants/run.py $(MUTANTS)

soak: setup
	@$(VENV) pytest -n 0 -s tests/soak

# Delete what stages and set-up made, except DVC's cache of finished stages and the state of runs in work/.
# What is yours stays: other models, and the pages of `wmt compare` and `wmt ablation`.
clean:
	sed -nE 's;^ +- ((data/(raw|tokenized|subwords|binned)|models|results)[^: ]*).*;\1;p' dvc.yaml | \
	    xargs rm -rf .venv data/.*.tmp models/.*.tmp results/.*.tmp data/.*.old models/.*.old results/.*.old
