#!/usr/bin/env bash
# Everything of the papers that the embedded family can show, into git's results/embedded: rows, then tables,
# figures and pages. What is complete is not run again.
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH=$PWD/.venv/bin:$PATH

recipe() { # a recipe at the embedded models' size, with other settings
    python -m spec_bench -m "$1" experiment=embedded results=results/embedded "${@:2}"
}

python experiments/rsd/bernoulli.py
recipe rsd=exp1
recipe rsd=exp2 prompts=20
recipe mcsd=acceptance pair=embedded,embedded_plain prompts=12
recipe mcsd=ablation
# What Section 4.5 says of argmax sampling: rules that are one, and a chain.
recipe mcsd=ablation generation.temperature=0 'cells=[mcsd_wor:4-2-1,mcsd:4-2-1,mcns:4-2-1,sd:3]'
recipe mcsd=search_monotone prompts=8 confirm.prompts=40
recipe mcsd=search prompts=2 confirm.prompts=40
recipe dsbd=fronts prompts=60
recipe dsbd=one_cache prompts=60

# All decoders continue one conversation, which ends long before 1024 tokens. Two tree sizes for each kind of heads.
heads=medusa:embedded_16,medusa_typical:embedded_16,medusa:mc_sim_7b_63,medusa_typical:mc_sim_7b_63
heads=$heads,redrafter:8x5,redrafter_typical:8x5,redrafter:15x5,redrafter_typical:15x5
recipe redrafter=decoding prompts=24 generation.max_new_tokens=96 task.later_turns=fixed "cells=[$heads]"
recipe redrafter=beams prompts=12 generation.max_new_tokens=8,16,32
# The embedded pair also has a draft model to compare with its heads.
recipe redrafter=batches prompts=32 \
    'cells=[sd:3,rsd_s:4x3,redrafter:2x5,redrafter:8x5,{decoder: redrafter, spec: 8x5, tree_attention: false}]'
recipe redrafter=temperatures prompts=16 generation.max_new_tokens=128 task.later_turns=fixed \
    'cells=[redrafter:8x5,redrafter_typical:8x5]'

# One task and short answers: 34 rules and trees are compared at each temperature.
recipe beyond=verification task=dolly prompts=16 generation.max_new_tokens=48
recipe beyond=trees task=dolly prompts=16 generation.max_new_tokens=48
recipe beyond=draft_free
recipe eagle=mt_bench prompts=24 generation.max_new_tokens=96 task.later_turns=fixed
recipe eagle=rules prompts=8 generation.max_new_tokens=64
recipe eagle=heads prompts=16 generation.max_new_tokens=64
recipe today=drafters generation.max_new_tokens=64

python -m spec_bench report all --results results/embedded
echo
echo "written: results/embedded, which is in git"
