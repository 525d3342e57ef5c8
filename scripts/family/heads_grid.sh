#!/usr/bin/env bash
# Trains ReDrafter's grid of heads (Figure 4) for the embedded target, and measures it into git's results.
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH=$PWD/.venv/bin:$PATH

prompts=results/train/world-prompts.jsonl
test -f $prompts || python scripts/family/world_prompts.py 20000 $prompts
python -m spec_bench train training=embedded_grid
python -m spec_bench train training=embedded head=redrafter head.blocks=4 name=grid/redrafter-blocks4
python -m spec_bench.train.collect spec_bench/embedded/heads/{medusa,redrafter,redrafter_no_rnn} results/train/grid \
    --out results/embedded/redrafter-heads/heads.csv
python -m spec_bench -m redrafter=grid experiment=embedded results=results/embedded prompts=12 \
    "pair.heads.redrafter=$(ls -d results/train/grid/*/heads | paste -sd,)"
python -m spec_bench report all redrafter-grid --results results/embedded
