"""Measured rows made of literals: ``row("sd", "3", **SQUAD, token_rate=(50.0, 49.0, 51.0))``."""

from functools import partial
from itertools import product
from math import log
from pathlib import Path
from zlib import crc32

import numpy as np
import pandas as pd

from spec_bench.records import cell_folder
from spec_bench.records.types import ENGINE, Generation, StepRecord

DEFAULTS = {
    "pair": "llama2_7b", "target": "meta-llama/Llama-2-7b-hf", "draft": "JackFram/llama-160m",
    "task": "xsum", "temperature": 0.3, "top_k": 0, "top_p": 1.0, "seed": 0, "prompts": 30,
    "batch_size": 1, "tree_attention": True, "lossless": "exact", "status": "complete",
    "reason": "", "baseline": "same job", "engine": ENGINE,
}  # fmt: skip
EMBEDDED = {
    "pair": "embedded", "target": "embedded:target", "draft": "embedded:draft_distilled",
    "prompts": 8,
}  # fmt: skip
SQUAD = {
    **EMBEDDED, "task": "squad", "temperature": 1.0, "top_k": 10, "top_p": 0.8,
    "reason": "energy_j_per_token: no meter",
}  # fmt: skip
MT_BENCH = {**EMBEDDED, "task": "mt_bench", "temperature": 0.0}
METRICS = (
    *("block_efficiency", "mbsu", "acceptance_rate", "token_rate", "token_rate_per_request"),
    *("speedup", "rouge2", "bleu"),
)
"""The metrics whose columns every row has, measured or not."""
EMPTY = {f"{name}{end}": None for name in METRICS for end in ("", "_low", "_high")}


def row(decoder, spec="-", *, half=None, **values):
    """One cell; a metric is ``name=(value, low, high)``, or its value; ``half`` widens a value."""
    made = {**EMPTY, **DEFAULTS, "decoder": decoder, "spec": spec, "run_id": f"{decoder}-{spec}"}
    beams = decoder.startswith(("beam", "dsbd"))
    exact = "exact_beam" if beams else "exact"
    made["lossless"] = "approximate" if decoder.endswith("_typical") else exact
    for name, value in values.items():
        if isinstance(value, tuple):
            made[name], made[f"{name}_low"], made[f"{name}_high"] = value
        else:
            made[name] = value
    for name in METRICS if half is not None else ():
        if made[name] is not None and made[f"{name}_low"] is None:
            made |= {f"{name}_low": made[name] - half, f"{name}_high": made[name] + half}
    if decoder == "ar" and "draft" not in values:
        made["draft"] = ""
    return made


embedded = partial(row, half=0.1, **EMBEDDED)
squad = partial(row, half=0.1, **SQUAD)
HIGH = [[3, 3, 2], [3, 2, 3], [3, 3, 3], [2, 3, 3]] * 2
LOW = [[1, 0, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]] * 2
"""Accepted tokens of eight prompts, for ``record``."""


def cell(decoder, spec, tau, **values):
    """A cell of the embedded pair with one number for all."""
    numbers = {"block_efficiency": tau, "mbsu": tau, "token_rate": tau * 10}
    return embedded(decoder, spec, **{**numbers, **values})


def around(value, half):
    return value, value - half, value + half


def found(checks, *words):
    """The checks whose claims have these words."""
    return [check for check in checks if all(word in check.claim for word in words)]


def only(checks, *words):
    (check,) = found(checks, *words)
    return check


def frame(*rows):
    return pd.DataFrame(list(rows))


def write(folder, name, *rows):
    """``<folder>/<name>/results.csv``; returns the folder."""
    path = folder / name / "results.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    frame(*rows).to_csv(path, index=False)
    return folder


def record(results, run_id, accepted, *, depth=3, rate=1, session="", categories=()):
    """Writes raw records: accepted tokens by prompt and target call, ``rate`` tokens a second, all
    but equal on all prompts.
    """
    unlike = np.random.default_rng(crc32(run_id.encode())).uniform(1, 1 + 1e-7, len(accepted))
    made = []
    for prompt, counts in enumerate(accepted):
        steps = tuple(StepRecord(depth, depth, count, count + 1) for count in counts)
        tokens = tuple(range(sum(counts) + len(counts)))
        times = (0.0, len(tokens) / rate * unlike[prompt], 0.0, 0.0)
        own = {"session": session, "category": categories[prompt] if categories else ""}
        made.append(Generation(str(prompt), tokens, "length", steps, *times, **own))
    _written(results, run_id, made)


def _written(results, run_id, made):
    cell_folder.rewrite_generations(
        results.parent.parent / "runs" / run_id / "generations.jsonl", made
    )


_PROMPTS, _CALLS, _TOKENS, _SPREAD = 8, 200, 20, 0.01
_LAYERS = 100
_UNLIKE = (-3, -1, 1, 3)


def recorded(results, rows):
    """The cells with raw records that come to their numbers, up to a hundredth and three tokens up
    and down on each half of the prompts, and as many clocks.
    """
    rows = rows.assign(run_id=[f"cell-{place}" for place in range(len(rows))])
    for place, (_, row) in enumerate(rows.iterrows()):
        rng = np.random.default_rng(place)
        own = np.stack([rng.permutation(_UNLIKE), rng.permutation(_UNLIKE)], axis=1).ravel()
        made = [_generation(row, p, own[p]) for p in range(_PROMPTS)]
        _written(Path(str(row.get("file", results))), str(row.run_id), made)
    return rows


def _generation(row, prompt, own):
    def known(name):
        value = row.get(name)
        return None if value is None or pd.isna(value) else float(value)

    alpha, width = known("acceptance_rate"), known("beam_width")
    tau = known("block_efficiency") or (1.0 + alpha if alpha is not None else 2.0)
    # Some tokens more or less a prompt; none where every call accepts all or nothing.
    emitted = round(tau * _CALLS) + (int(own) if tau > 1.0 and alpha != 1.0 else 0)
    least, more = divmod(emitted - _CALLS, _CALLS)
    beams = round(_LAYERS * (width or 0)) + (int(own) if (width or 0) > 1 else 0)
    narrow, wide = divmod(beams, _LAYERS)
    widths = (narrow + 1,) * wide + (narrow,) * (_LAYERS - wide) if narrow else ()
    steps = tuple(
        StepRecord(8, 1 if alpha is not None else 8, least + (call < more), 1, widths)
        for call in range(_CALLS)
    )
    factor = 1 + _SPREAD * own / 3
    rate, perplexity = known("token_rate") or 1.0, known("perplexity")
    latency, energy = known("token_rate_per_request"), known("energy_j_per_token")
    seconds, tokens = _TOKENS / rate * factor, tuple(range(_TOKENS))
    times = (0.0, seconds, 0.0, seconds * (1 - prompt / 100))
    more = {
        "energy_j": None if energy is None else energy * _TOKENS * factor,
        "log_likelihood": None if perplexity is None else -log(perplexity) * _TOKENS * factor,
        "latency_s": None if latency is None else _TOKENS / latency * factor,
    }
    return Generation(str(prompt), tokens, "length", steps, *times, **more)


def dsbd_cells(**same):
    """Beams of width 1 to 3, three settings of DSBD (one slower and better), SD, the baseline."""
    cells = (
        ("ar", "-", 0.50, 30.0, None),
        ("sd", "3", 0.50, 50.0, None),
        ("beam_sampling", "1", 0.50, 30.0, 1.0),
        ("beam_sampling", "2", 0.60, 20.0, 2.0),
        ("beam_sampling", "3", 0.70, 10.0, 3.0),
        ("dsbd", "3x2@0.9", 0.64, 36.0, 1.5),
        ("dsbd", "4x2@0.9", 0.70, 30.0, 2.5),
        ("dsbd", "4x2@0.7", 0.72, 24.0, 2.75),
    )
    rows = []
    for decoder, spec, score, speed, width in cells:
        values = {"exact_match": around(score, 0.03), "token_rate": around(speed, 1.0)}
        values |= {"perplexity": around(2.0 - score, 0.01)}
        values |= {"beam_width": None if width is None else around(width, 0.1)}
        rows.append(row(decoder, spec, **{**SQUAD, **values, **same}))
    return frame(*rows)


SHARES = {  # of right guesses at t+1 to t+5
    "medusa": (0.6, 0.55, 0.5, 0.45, 0.4),
    "redrafter": (0.62, 0.6, 0.6, 0.6, 0.6),
    "redrafter_no_rnn": (0.61, 0.58, 0.55, 0.52, 0.5),
}


def head(kind, folder="", last=None, **values):
    """A trained head as ``heads.csv`` has it; ``last`` is its accuracy at t+5."""
    shares = [*SHARES[kind][:4], SHARES[kind][4] if last is None else last]
    found = {"head": kind, "blocks": 2, "learning_rate": 0.003, "steps": 100}
    found |= {"parameters": 1_000_000 if kind != "medusa" else 2_000_000}
    for number, share in enumerate(shares, 1):
        found |= {f"train t+{number}": share + 0.05, f"validation t+{number}": share}
    return {**found, "validation dialogues": 800, "seconds": 1.0, "folder": folder, **values}


def redrafter_grid(folder):
    """Four heads with and four without the recurrence, decoded with; ``heads.csv`` beside."""
    heads, rows = [head("medusa", "m")], []
    for kind, blocks in product(("redrafter", "redrafter_no_rnn"), range(4)):
        bonus, name = 0.5 * (kind == "redrafter"), f"heads/{kind}-{blocks}"
        heads.append(head(kind, name, 0.40 + 0.05 * blocks + bonus / 10, blocks=blocks))
        measured = {
            "block_efficiency": around(2.0 + 0.2 * blocks + bonus, 0.01),
            "token_rate": around(50.0 + 10.0 * blocks - 20 * bonus, 1.0),
            "experiment": "redrafter-grid",
            "file": str(folder / "redrafter-grid" / "results.csv"),
            "draft": name,
        }
        rows.append(row("redrafter", "15x5", **{**MT_BENCH, **measured}))
    (folder / "redrafter-heads").mkdir(parents=True)
    frame(*heads).to_csv(folder / "redrafter-heads" / "heads.csv", index=False)
    return frame(*rows)


def redrafter_beams():
    """Beams 1, 2 and 4 wide, answers of at most 8 and 32 tokens."""
    counts, rows = {1: (5, 5, 5), 2: (6, 8, 9), 4: (10, 12, 16)}, []
    for limit, (width, nodes) in product((8, 32), counts.items()):
        own = {"experiment": "redrafter-beams", "max_new_tokens": limit}
        own |= {"block_efficiency": around(2.0 + 0.1 * width, 0.01)}
        ends = zip(("_p01", "_p50", "_p99", ""), (*nodes, nodes[1]), strict=True)
        own |= {f"nodes_per_call{end}": float(count) for end, count in ends}
        rows.append(row("redrafter", f"{width}x5", **MT_BENCH, **own))
    return frame(*rows)


def redrafter_batches():
    """AR and ReDrafter at batch 1 and 4, beams merged and as rows."""
    beams = ("redrafter", "8x5")
    cells = (("ar", "-", True, 20.0), (*beams, True, 50.0), (*beams, False, 30.0))
    rows = []
    for size, (decoder, spec, attention, speed) in product((1, 4), cells):
        own = {"batch_size": size, "batching": "continuous", "tree_attention": attention}
        own |= {"block_efficiency": around(3.0, 0.1), "experiment": "redrafter-batches"}
        own |= {"token_rate": around(speed * size**0.5, 1.0)}
        own |= {"token_rate_per_request": around(speed / size**0.5, 1.0)}
        own |= {"nodes_per_call": 20.0 if attention else 40.0}
        rows.append(row(decoder, spec, **MT_BENCH, **own))
    return frame(*rows)
