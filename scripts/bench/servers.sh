#!/usr/bin/env bash
# vLLM and llama.cpp beside ours on SmolLM2, some 20 minutes on one core; then llama.cpp on Qwen2.5-Coder. VLLM and
# LLAMA are their programs, HEADS an EAGLE-3 head, F32 the target as GGUF in float32 (docs/server.md):
#     VLLM=vllm LLAMA=llama-server HEADS=FOLDER F32=FILE.gguf scripts/bench/servers.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH=$PWD/.venv/bin:$PATH

words=(pair=smollm2 task=humaneval 'task.metrics=[]' prompts=24 generation=greedy
    generation.max_new_tokens=64 results=outputs/servers)
one='-t 1 -tb 1 -ctk f32 -ctv f32'

make smollm2 qwen_coder
python -m spec_bench run engine.threads=1 "pair.heads.eagle3=$HEADS" name=ours "${words[@]}" \
    'cells=[sd:5,{decoder: sd, drafter: eagle3, spec: 5},prompt_lookup:1x5]'
python -m spec_bench serve vllm --program "$VLLM" --draft "$HEADS" --with ngram,eagle3 \
    --arguments='--dtype float32 --max-model-len 1024 --enforce-eager' name=vllm "${words[@]}"
python -m spec_bench serve llama_cpp --program "$LLAMA" --model "$F32" --with ngram,ngram_map \
    --arguments="$one" name=llama-f32 "${words[@]}"
python -m spec_bench serve llama_cpp --program "$LLAMA" --with ngram --arguments="$one" name=llama-q4_1 "${words[@]}"
python scripts/check/served.py outputs/servers --page results/benchmarks/servers-smollm2.md

python -m spec_bench serve llama_cpp --program "$LLAMA" --with draft_model,ngram \
    --arguments='-t 2 -tb 2' pair=qwen25_coder_q4 task=humaneval 'task.scores=[]' prompts=20 \
    generation.max_new_tokens=96 name=llama-coder results=outputs/servers_coder
python -m spec_bench serve vllm --program "$VLLM" --with draft_model,ngram \
    --arguments='--dtype bfloat16 --max-model-len 2048 --enforce-eager' pair=qwen25_coder_q4 task=humaneval \
    'task.scores=[]' prompts=20 generation=greedy generation.max_new_tokens=96 name=vllm-coder \
    results=outputs/servers_coder
