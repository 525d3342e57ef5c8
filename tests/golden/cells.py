"""Run ids of composed jobs, and the tokens of every decoder.

Run ids are read where they are made, in a plan of each command line: whatever
``spec_bench.jobs.config.settings.hash_json`` is given as a mapping is a cell's settings.
"""

import csv
import hashlib
import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from unittest import mock

from .workspace import must

RUN = "spec_bench"
_SAMPLE = "task.source.kind=embedded"  # of published pairs: nothing is fetched
_OWN = "pair=embedded engine.threads=1 name=golden"
_PAIRS = (
    "embedded,embedded_plain,llama2_13b,llama2_13b_160m,llama2_13b_68m,llama2_13b_ft160m,"
    "llama2_13b_ft68m,llama2_70b,llama2_7b,llama2_chat_13b,llama2_chat_13b_160m,"
    "llama2_chat_13b_68m,llama2_chat_13b_ft160m,llama2_chat_13b_ft68m,llama2_chat_70b,"
    "llama2_chat_7b,llama_13b_160m,llama_13b_68m,llama_13b_ft160m,llama_13b_ft68m,llama_33b_160m,"
    "llama_33b_68m,opt_13b,opt_13b_350m,opt_30b,opt_30b_350m,opt_66b,opt_66b_350m,opt_iml_30b,"
    "vicuna_13b_160m,vicuna_13b_68m,vicuna_13b_ft160m,vicuna_13b_ft68m,"
    "vicuna_33b_160m,vicuna_33b_68m"
)
_DECODERS = (
    "ar,beam_sampling,beam_search,dsbd,dsbd_one_cache,mcns,mcsd,mcsd_wor,medusa,medusa_typical,"
    "redrafter,redrafter_typical,rsd_c,rsd_s,sd,specinfer,spectr"
)
COMMANDS = (
    f"-m pair={_PAIRS} {_SAMPLE}",
    f"pair=vicuna_13b decoder=medusa {_SAMPLE}",
    f"pair=vicuna_7b decoder=medusa_typical spec=mc_sim_7b_63 {_SAMPLE}",
    f"-m decoder={_DECODERS}",
    "-m task=alpaca,dolly,mt_bench,random,spider,squad,wmt14_ende,wmt18_deen,xsum",
    f"-m engine=default,cuda pair=llama2_70b,opt_13b engine.batch_size=1,8 {_SAMPLE}",
    "-m generation=default,greedy seed=0,1 prompts=3,null",
    "generation.top_p=0.9 generation.top_k=20 generation.max_new_tokens=33",
    "-m engine.batching=static,continuous engine.batch_size=4 engine.compile=none,dynamo",
    "-m simulate=0.75,[0.8,0.7,0.6] decoder=rsd_s,sd",
    "-m energy=none,paper",
    "warmup=0 experiment=quickstart",
    "warmup=3 pair.draft=embedded:draft",
    "pair.draft=[embedded:draft,embedded:draft_distilled] "
    "cells=[{decoder: specinfer, spec: 2-2-1, drafter: {drafts: 2}}]",
    "cells=[{decoder: mcsd, spec: 4-2-1, tree_attention: false},rsd_c:3-2-1]",
    "cells=[sd:3,sd:3,rsd_s:4x3,{grid: {decoder: mcsd_wor, factors: [1, 2, 4], most: 8, "
    "depths: [1, 2, 3], order: any}}]",
    "rsd=exp1 experiment=embedded",
    "rsd=exp2 experiment=embedded",
    f"rsd=exp1 pair=llama2_7b,opt_66b_350m engine=cuda {_SAMPLE}",
    f"rsd=exp2 pair=llama2_chat_70b engine=cuda {_SAMPLE}",
    "mcsd=acceptance experiment=embedded pair=embedded,embedded_plain",
    "mcsd=ablation experiment=embedded",
    f"mcsd=ablation pair=llama_13b_68m engine=cuda {_SAMPLE}",
    "mcsd=search_monotone experiment=embedded prompts=12",
    "mcsd=search experiment=embedded prompts=5 task=alpaca",
    "dsbd=fronts experiment=embedded prompts=100",
    f"dsbd=fronts pair=llama2_13b_68m,opt_13b engine=cuda {_SAMPLE}",
    "dsbd=one_cache experiment=embedded prompts=100",
    "redrafter=decoding experiment=embedded prompts=24 task.later_turns=fixed "
    "generation.max_new_tokens=128",
    f"redrafter=decoding pair=vicuna_7b engine=cuda cells=[medusa:mc_sim_7b_63] {_SAMPLE}",
    "redrafter=beams experiment=embedded prompts=12 generation.max_new_tokens=8,16,32",
    "redrafter=batches experiment=embedded prompts=32 cells=[sd:3,rsd_s:4x3,redrafter:2x5,"
    "redrafter:8x5,{decoder: redrafter, spec: 8x5, tree_attention: false}]",
    "redrafter=temperatures experiment=embedded prompts=16 task.later_turns=fixed "
    "generation.max_new_tokens=128",
    "redrafter=grid experiment=embedded",
)
_MOST = 60  # ids of one command kept one by one; of more a digest each sixty

TREES = {
    "ar": "", "sd": "3", "mcns": "2-2-1", "mcsd": "2-2-1", "mcsd_wor": "2-2-1", "rsd_c": "2-2-1",
    "rsd_s": "4x3", "specinfer": "2-2-1", "spectr": "3x3", "beam_sampling": "2",
    "beam_search": "3", "dsbd": "3x2@0.7", "dsbd_one_cache": "4x3@0.9", "medusa": "embedded_16",
    "medusa_typical": "embedded_16", "redrafter": "4x3", "redrafter_typical": "4x3",
}  # fmt: skip
"""Every decoder of ``conf/decoder`` and its tree here."""
TASKS = ("xsum", "wmt18_deen", "dolly")
_DECODED = "prompts=5 generation.max_new_tokens=24 warmup=0 sink=quiet results=decoded"
_FREE = ("_s", "_bytes", "_low", "_high", "_w", "_mhz")  # endings of columns that no run repeats
_RATES = (
    *("token_rate", "speedup", "host_overhead", "latency", "energy", "run_id", "baseline"),
    *("load_average", "stalls", "machine"),
)
_OF_BYTES = ("target_digest", "draft_digest", "token_ids_digest")  # ids and tokens say as much
_OF_TIMES = ("speedup: ", "intervals: ends over")  # beginnings of reasons


def run_ids(commands):
    """The run ids of each command's cells, in order, each once."""
    identity = import_module("spec_bench.jobs.config.settings")  # where a run id is made
    pairs = import_module("spec_bench.jobs.config.pair")
    digest = identity.hash_json
    found = {}
    for command in commands:
        made = {}

        def watching(value, made=made):
            name = digest(value)
            if isinstance(value, Mapping):
                made[name] = None
            return name

        with (
            mock.patch.object(identity, "hash_json", watching),
            mock.patch.object(pairs, "find_hub_commit", return_value=None),  # what the cache has
            mock.patch.object(pairs, "is_cuda_usable", return_value=False),
        ):
            must(RUN, *split(command), "plan=true")
        found[command] = _short(list(made))
    return found


def split(command):
    """A command line's words; a space inside brackets parts nothing."""
    words, depth = [""], 0
    for letter in command:
        depth += (letter in "[{") - (letter in "]}")
        if letter == " " and depth == 0:
            words.append("")
        else:
            words[-1] += letter
    return words


def _short(ids):
    if len(ids) <= _MOST:
        return ids
    parts = [ids[start : start + _MOST] for start in range(0, len(ids), _MOST)]
    return [f"{len(ids)} cells", *(_digest(" ".join(part)) for part in parts)]


def decoded(decoders=TREES, tasks=TASKS, temperatures=(0, 1), batches=("1 static", "4 static")):
    """What decoders deliver on the embedded pair, by ``decoder spec task temperature batch
    batching``: the run id, per prompt a digest of the tokens and one of the accepted counts, and
    the row's columns that every run repeats.
    """
    cells = [f"{name}:{TREES[name]}" if TREES[name] else name for name in decoders]
    words = [f"task={','.join(tasks)}", f"cells=[{','.join(cells)}]", *_OWN.split()]
    words += [f"generation.temperature={','.join(map(str, temperatures))}", *split(_DECODED)]
    for batch in batches:
        size, batching = batch.split(" ")
        must(RUN, "-m", *words, f"engine.batch_size={size}", f"engine.batching={batching}")
    with open("decoded/golden/results.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    found = {}
    for row in (row for row in rows if row["decoder"] in {*decoders}):
        named = {**row, "temperature": f"{float(row['temperature']):g}"}
        names = ("decoder", "spec", "task", "temperature", "batch_size", "batching")
        found[" ".join(named[name] for name in names)] = _cell(row)
    return found


def all_decoded():
    """Every decoder on all tasks; with prompts that join a running batch on one of them."""
    return {**decoded(), **decoded(tasks=("xsum",), temperatures=(1,), batches=("4 continuous",))}


def _cell(row):
    file = Path("decoded/runs") / row["run_id"] / "generations.jsonl"
    prompts = {}
    for line in file.read_text("utf-8").splitlines():
        record = json.loads(line)
        accepted = [step["accepted"] for step in record["steps"]]
        prompts[record["prompt_id"]] = f"{_digest(record['tokens'])} {_digest(accepted)}"
    kept = {key: _value(text) for key, text in row.items() if text and not key.endswith(_FREE)}
    kept = {key: value for key, value in kept.items() if not key.startswith(_RATES)}
    kept = {key: value for key, value in kept.items() if key not in _OF_BYTES}
    if "reason" in kept:  # what stalls did to a speed-up or to ends, no run repeats either
        said = str(kept["reason"]).split("; ")
        kept["reason"] = "; ".join(each for each in said if not each.startswith(_OF_TIMES))
    return {"run_id": row["run_id"], "prompts": prompts, "row": kept}


def _value(text):
    try:
        return float(f"{float(text):.9g}")
    except ValueError:
        return text


def _digest(value):
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]
