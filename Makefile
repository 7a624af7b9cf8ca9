# Two commands do everything, set-up included: `make demo` and `make test`. They share one virtual environment, .venv.
#
#   make demo          install, train RPP-SAC on InvertedPendulum-v5 for a minute, measure its equivariance, film it
#   make test          install, run the tests
#   make install       the environment alone, test tools included
#   make test-cluster  sweeps by Hydra's launchers, one on a Ray cluster that loses a node
#   make test-extras   other loggers, Optuna, packages of environments, mjlab, writers of logs: all of which it installs
#   make lint          ruff: rules and formatting; mypy: types
#   make docs          the documentation site, in build/site: open build/site/index.html, the search works from the disk
#   make newcomer      twenty commands of a first user, typed from the pages in an empty folder
#   make evidence      every claim's effect and verdict, computed again from the raw data
#   make bench         the benchmarks beside their peers, in six minutes where nothing else runs; raw times in build/benchmarks/
#   make clean         remove .venv, .venv-extras, caches and build products; runs/ stays
#
#   PYTHON=...         the interpreter to build .venv from (3.11 or newer)
#   BENCHMARKS=...     some of them: basis layers acting sac dynamics images install
#   TORCH_INDEX=...    one more package index, for instance https://download.pytorch.org/whl/cpu

PYTHON ?=
TORCH_INDEX ?=
JOBS ?= 2
BENCHMARKS ?= basis layers acting sac dynamics images install
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
RUN_READY := $(VENV)/.ready-run
TEST_READY := $(VENV)/.ready-test
EXTRAS := .venv-extras

# Without compiled modules each process of the tests compiles torch and scipy again, for some seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-cluster test-extras install lint docs newcomer evidence bench clean FORCE

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

# $(call set_up,REQUIREMENT,STAMPS). The environment is made anew where there is none, where a set-up was interrupted
# (.busy is left) or where it belongs to another checkout; otherwise only what changed is installed.
define set_up
set -eu; \
here="$$(pwd)"; \
if [ ! -x $(BIN)/python ] || [ -e $(VENV)/.busy ] || [ "$$(cat $(VENV)/.checkout 2>/dev/null)" != "$$here" ]; then \
    python=""; \
    for name in "$(PYTHON)" python3.11 python3 python3.12 python3.13 python3.14 python; do \
        if [ -n "$$name" ] && "$$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
            python="$$name"; break; \
        fi; \
    done; \
    if [ -z "$$python" ]; then \
        echo "make: rppdyn needs Python 3.11 or newer with the venv module, and none was found." >&2; \
        echo "      Install it (on Debian and Ubuntu: python3.11 and python3.11-venv) or say where it is: make PYTHON=/path/to/python3.11 ..." >&2; \
        exit 1; \
    fi; \
    echo "Making $(VENV) with $$("$$python" --version)"; \
    "$$python" -m venv --clear $(VENV); \
    echo "$$here" > $(VENV)/.checkout; \
fi; \
touch $(VENV)/.busy; \
echo "Installing $(1)"; \
$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") -c constraints.txt -e "$(1)"; \
rm -f $(VENV)/.busy; \
touch $(2)
endef

# A moved or copied checkout has a stamp that is up to date and an environment that is not.
ifneq ($(shell cat $(VENV)/.checkout 2>/dev/null),$(shell pwd))
MOVED := FORCE
endif

$(RUN_READY): pyproject.toml constraints.txt $(MOVED)
	@$(call set_up,.,$(RUN_READY))

$(TEST_READY): pyproject.toml constraints.txt $(MOVED)
	@$(call set_up,.[test],$(RUN_READY) $(TEST_READY))

install: $(TEST_READY)

# --resume: a demo that was interrupted goes on, and one that is done is not trained again.
demo: $(RUN_READY)
	$(BIN)/python docs/examples/demo.py

# One thread per worker: the matrices of the tests are small. Workers take from each other what is left.
test: $(TEST_READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

# Hydra's Ray launcher pins a cloudpickle older than Gymnasium's, and uses it for clouds alone.
test-cluster: $(TEST_READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt ray==2.60.0 hydra-joblib-launcher==1.2.0 hydra-submitit-launcher==1.2.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps hydra-ray-launcher==1.2.2
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/acceptance/test_launchers.py

# Packages of environments without their pins: they want another MuJoCo than this one, and say so (docs/jobs/your-environment.md).
# mjlab pins MuJoCo and rsl_rl, and LeRobot another torch, so they have an environment of their own, of 3 GB; LeRobot's pins are left out.
# mjlab's simulator runs on the CPU, whose kernels it compiles for minutes at first.
test-extras: $(TEST_READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[wandb,optuna]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gymnasium-robotics==1.4.2 shimmy==2.0.1 PettingZoo
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/acceptance/test_extras.py
	[ -x $(EXTRAS)/bin/python ] || $(BIN)/python -m venv $(EXTRAS)
	grep -E '^(torch|numpy|gymnasium|stable_baselines3)==' constraints.txt > $(EXTRAS)/constraints.txt
	$(EXTRAS)/bin/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") -c $(EXTRAS)/constraints.txt \
	    -e ".[onnx]" mjlab==1.6.0 pytest beartype "datasets>=4,<5" "huggingface-hub<0.36" accelerate "av<16" jsonlines deepdiff draccus==0.10.0 einops \
	    opencv-python-headless h5py psutil tensorboardX termcolor
	$(EXTRAS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps lerobot==0.4.4 robomimic==0.3.0
	OMP_NUM_THREADS=1 $(EXTRAS)/bin/python -m pytest tests/integrations/test_mjlab.py tests/integrations/test_rsl_rl.py tests/integrations/test_augmentation.py \
	    tests/tasks/test_recordings.py

lint: $(TEST_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Warnings are errors: a link or a reference that leads nowhere, a formula that can't be read.
docs: $(RUN_READY)
	@$(BIN)/python -c 'import sphinx, furo, myst_parser, latex2mathml' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -c docs/site . build/site
	$(BIN)/python docs/site/links.py build/site

newcomer: $(RUN_READY)
	OMP_NUM_THREADS=1 $(BIN)/python tests/acceptance/newcomer.py

evidence: $(RUN_READY)
	OMP_NUM_THREADS=1 $(BIN)/python docs/evidence/evidence.py
	OMP_NUM_THREADS=1 $(BIN)/python docs/evidence/approximate.py
	OMP_NUM_THREADS=1 $(BIN)/python docs/evidence/crossq.py
	OMP_NUM_THREADS=1 $(BIN)/python docs/evidence/large_groups.py
	OMP_NUM_THREADS=1 $(BIN)/python docs/evidence/learned_models.py
	OMP_NUM_THREADS=1 $(BIN)/python docs/evidence/learned_noise.py
	OMP_NUM_THREADS=1 $(BIN)/python docs/evidence/penalty_unit.py --table
	OMP_NUM_THREADS=1 $(BIN)/python docs/evidence/prior.py
	OMP_NUM_THREADS=1 $(BIN)/python docs/evidence/returns.py
	OMP_NUM_THREADS=1 $(BIN)/python docs/evidence/robot_models.py --tables
	OMP_NUM_THREADS=1 $(BIN)/python docs/evidence/robot_rates.py --tables

# Their --quick forms; docs/results/ shows what they find without it. One thread, but where a script sets torch's own. A script
# that fails is named at the end, and the others run.
bench: export TORCH_INDEX := $(TORCH_INDEX)
bench: $(RUN_READY)
	@mkdir -p build/benchmarks; failed=""; for name in $(BENCHMARKS); do \
	    echo "== benchmarks/$$name.py --quick"; \
	    OMP_NUM_THREADS=1 $(BIN)/python "benchmarks/$$name.py" --quick --json "build/benchmarks/$$name.json" || failed="$$failed $$name"; \
	done; if [ -n "$$failed" ]; then echo "make: failed:$$failed" >&2; exit 1; fi

clean:
	rm -rf $(VENV) $(EXTRAS) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
