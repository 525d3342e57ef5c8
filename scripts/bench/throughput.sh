#!/usr/bin/env bash
# Requests together on vLLM, which must be on the PATH, in minutes: results/benchmarks/throughput.md and
# throughput.png. Words at the end are settings.
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH=$PWD/.venv/bin:$PATH

page=results/benchmarks/throughput
python -m spec_bench serve vllm --with ngram,draft_model --requests 1,2,4,8 \
    --arguments='--dtype float32 --max-model-len 1024 --enforce-eager' task=xsum prompts=40 \
    generation=greedy generation.max_new_tokens=64 name=throughput "$@"
{
    printf '# vLLM, 1 to 8 requests together\n\n```\n'
    python -m spec_bench report throughput throughput
    printf '```\n'
} >$page.md
cp results/throughput/throughput.png $page.png
