#!/usr/bin/env bash
# ReDrafter on one pair: its heads (two blocks and as many as Table 1's heads have; the grid of 15 with and 15
# without the recurrence; Medusa's), and with "all" its tables and figures. Words at the end are settings.
#     scripts/family/redrafter.sh heads|all vicuna_7b sharegpt.json engine=cuda
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH=$PWD/.venv/bin:$PATH

part=$1 pair=$2 chats=$3
words=(pair="$pair" "${@:4}")
blocks=2,4
if [ "$pair" = vicuna_13b ]; then blocks=2,5; fi

python -m spec_bench train head=medusa "name=medusa_$pair" "data.path=$chats" "${words[@]}"
python -m spec_bench train -m training=redrafter "data.path=$chats" "${words[@]}" "head.blocks=$blocks"
python -m spec_bench train -m training=redrafter_grid "data.path=$chats" "${words[@]}"
python -m spec_bench.train.collect "results/train/medusa_$pair" "results/train/redrafter_${pair}"_blocks* \
    "results/train/redrafter_${pair}_grid" --out results/redrafter-heads/heads.csv
if [ "$part" = heads ]; then exit; fi

for recipe in decoding temperatures beams batches; do
    python -m spec_bench -m redrafter=$recipe "${words[@]}"
done
python -m spec_bench -m redrafter=grid "${words[@]}" \
    "pair.heads.redrafter=$(ls -d "results/train/redrafter_${pair}_grid"/*/heads | paste -sd,)"
python -m spec_bench report all
