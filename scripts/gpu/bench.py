"""All that wants a GPU, in parts: ``python3 scripts/gpu/bench.py first --out DIR --minutes 9``.

``first`` is what a first call should ask: probe, what kernels take, the phases of iterations beside
a reference of torch alone, correctness, then the speed of one 7B pair, with iterations recorded,
eager and with Inductor; ``all`` is every part. Each is a command of its own (``python3
scripts/gpu/bench.py`` lists them) and needs a python with torch, transformers and pydantic, nothing
else: no environment, no weights, no network. Only the jobs of spec-bench, which come last, need its
environment, and are left out without it. A part that is not over at its limit is ended; what it
measured until then stands in its table, and its text in ``PART.log``. A part that ended well is not
run again in the same folder. At the end stand the verdicts: what is wrong or failed, what a canary
refused, what recording makes slower. ``--tiny`` rehearses on a CPU.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.system.files import read_csv, write_text

SCRIPTS = Path(__file__).resolve().parents[1]
OUT = SCRIPTS.parent / "results" / "benchmarks"
LIMIT_S = {"correct": 180}  # by part: the same command goes on with it
LIMIT_OF_ALL_S = 480
NEEDED = "torch", "transformers", "pydantic"
LEAST_S = 30  # in which a part measures anything
WAYS = "static", "none", "static_inductor"
DONE = "parts.json"  # which ended well, with their seconds
PHASES = "kernels", "smollm2", "7b"  # parts of phases.py
# Those that say where time goes come before those that say how much.
JOBS = "printed-exp1", "qwen-coder", "printed-exp2"
FIRST = (
    "probe",
    "phases-kernels",
    "reference",
    "phases-smollm2",
    "phases-7b",
    "correct",
    *(f"speed-{how}" for how in WAYS),
    *JOBS,
)
CELLS = (
    "ar:-",
    "sd:5",
    "spectr:6x5",
    "rsd_c:2-2-2-2-2",
    "rsd_s:12x5",
)  # whose speed a first call asks
SLOWER = 0.97  # of the eager rate: less is no gain

_ON_CPU = ["--device", "cpu", "--prompts", "1", "--new-tokens", "4"]
_FEW = ["--samples", "500", "--decoders", "ar", "sd", "rsd_s", "medusa"]
ROLES = "target", "draft"  # of a pair's models
_TINY_JOB = [
    *(f"pair.{role}=random:llama_tiny" for role in ROLES),
    "pair.paper={target: Llama-2-7B, draft: Llama-2-115M}",
    *("prompts=1", "generation.max_new_tokens=8", "++task.prompt_tokens=16"),
]
_TINY_SCALING = ["--width", "64", "--layers", "1", "--repeats", "1"]
Parts = dict[str, tuple[list[str], list[str]]]


def parts(out: Path = OUT) -> Parts:
    """By name: a script with its arguments, and those of a rehearsal on a CPU, if there is one;
    tables go to ``out``.
    """
    to_folder = ["--output", str(out)]
    correct, both = ["gpu/correct.py", *to_folder], ["--compile", "none", "static"]
    rates = ["gpu/rates.py", *to_folder, *both]
    found: Parts = {
        "probe": (["gpu/probe.py", *to_folder], []),
        "correct": (correct, [*correct, *_ON_CPU, *_FEW]),
        "rates": (rates, [*rates, *_ON_CPU, "--dtypes", "float32"]),
    }
    for name in ("speed", "llama2_7b", "llama2_13b", "opt_30b"):
        for how in WAYS:
            file = ["--output", str(out / f"random-{name}-{how}.csv"), "--compile", how]
            command, tiny = ["gpu/random_pair.py", *file], []
            if name == "speed":
                command += ["--cells", *CELLS]
                tiny = [*command, "--tiny", "--targets", "llama_tiny"]
            target = "llama2_7b" if name == "speed" else name
            found[f"{name}-{how}"] = [*command, "--targets", target], tiny
    reference = ["gpu/reference.py", *to_folder]
    found["reference"] = reference, [*reference, "--tiny"]
    for part in PHASES:
        phases = ["gpu/phases.py", *to_folder, "--parts", part]
        found[f"phases-{part}"] = phases, [*phases, "--tiny"]
    if importlib.util.find_spec("hydra"):
        found |= jobs(out)
    heads = ["gpu/heads.py", *to_folder]
    scaling = ["bench/scaling.py", "--out", str(out / "scaling-gpu")]
    found["heads"] = heads, [*heads, "--tiny"]
    found["scaling"] = (
        [*scaling, "--device", "cuda", "--dtype", "bfloat16", "--width", "4096"],
        [*scaling, *_TINY_SCALING],
    )
    return found


def jobs(out: Path) -> Parts:
    """Jobs of spec-bench on random weights of published sizes, which accept as papers print it, or
    as a CPU measured it; five prompts are the fewest that have intervals.
    """
    to_folder = [f"results={out.resolve() / 'jobs'}", "prompts=5", "task.source.kind=random"]
    printed = [*to_folder, "task=xsum", "simulate=printed"]
    measured = f"simulate={OUT.parent / 'qwen_coder' / 'results.csv'}"
    given = {
        "printed-exp1": (["rsd=exp1", *printed], ["llama2_7b", "llama_160m"]),
        "qwen-coder": (
            ["experiment=qwen_coder", *to_folder, measured, "++task.prompt_tokens=99"],
            ["qwen25_coder_1.5b", "qwen25_coder_0.5b"],
        ),
        "printed-exp2": (["rsd=exp2", *printed], ["llama2_7b", "llama_160m"]),
    }
    found: Parts = {}
    for name, (words, models) in given.items():
        command = ["-m", "spec_bench", "run", *words]
        sizes = [f"pair.{role}=random:{model}" for role, model in zip(ROLES, models, strict=True)]
        found[name] = [*command, *sizes, "engine=cuda"], [*command, *_TINY_JOB]
    return found


def run(name: str, command: Sequence[str], out: Path, limit_s: float) -> str:
    """Runs a part for at most that long, its text on the screen and in ``NAME.log``; the verdict
    on it, "" if it ended well.
    """
    print(f"== {name}: {' '.join(command)}", flush=True)
    script, *given = command
    start_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-u", script if script == "-m" else str(SCRIPTS / script), *given],
        cwd=SCRIPTS.parent if script == "-m" else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    timer = threading.Timer(limit_s, process.kill)
    timer.start()
    assert process.stdout is not None
    with (out / f"{name}.log").open("w", encoding="utf-8") as log:
        for line in process.stdout:
            if "Loading weights" not in line:
                print(line, end="", flush=True)
                log.write(line)
                log.flush()
    status = process.wait()
    timer.cancel()
    seconds = time.monotonic() - start_s
    late = f"NOT OVER: {name} after {limit_s:.0f} s; the same command goes on"
    verdict = late if seconds >= limit_s else f"FAILED: {name} (status {status}, see {name}.log)"
    print(f"== {name}: {'done' if status == 0 else verdict}, {seconds:.0f} s", flush=True)
    return verdict if status else ""


def verdicts(out: Path) -> Iterator[str]:
    """What the tables in a folder say that should not be so."""
    correct = read_csv(out / "gpu-correct.csv")
    for row in correct:
        setting = f"{row['dtype']}, {row['compile']}, batch {row['batch']}"
        if int(row["wrong"] or 0):
            yield f"WRONG: {row['decoder']} ({setting}): {row['wrong']}"
        if row.get("failed"):
            yield f"FAILED: {row['decoder']} ({setting}): {row['failed']}"
    tables = {path.stem: read_csv(path) for path in sorted(out.glob("*.csv"))}
    for name, rows in tables.items():
        if refused := [row for row in rows if row.get("refused")]:
            said = f"{refused[0]['decoder']}: {refused[0]['refused']}"
            yield f"REFUSED: {len(refused)} of {len(rows)} rows of {name}.csv, first {said}"
        if all(row.get("device") == "cpu" for row in rows):
            continue  # a rehearsal's times say nothing
        pair, how, _ = name.partition("-static")
        eager = tables.get(f"{pair}-none") if how else None
        if eager:
            yield from _no_gain(name, rows, eager)


def _no_gain(
    name: str, rows: Sequence[Mapping[str, str]], eager: Sequence[Mapping[str, str]]
) -> Iterator[str]:
    """Rows that recording does not make faster."""
    rates = {(row["decoder"], row["spec"]): row["token_rate"] for row in eager if "spec" in row}
    both = [(row["token_rate"], rates.get((row["decoder"], row["spec"]))) for row in rows]
    slower = [one for one, other in both if one and other and float(one) < SLOWER * float(other)]
    if slower:
        yield f"SLOWER: {len(slower)} of {len(rows)} rows of {name}.csv than without recording"


def main(arguments: Sequence[str] | None = None) -> int:
    """Lists the parts, or runs those that are named; 1 for a verdict, 2 for an unknown part."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", help="names, first or all; none lists them")
    parser.add_argument("--tiny", action="store_true", help="rehearse on a CPU")
    parser.add_argument("--out", type=Path, default=OUT, help="where tables go, such as $OUT")
    parser.add_argument("--minutes", type=float, default=1e6, help="for all parts together")
    options = parser.parse_args(arguments)
    ends_s = time.monotonic() + 60 * options.minutes
    known = {
        name: each[options.tiny] for name, each in parts(options.out).items() if each[options.tiny]
    }
    if not options.parts:
        for name, command in known.items():
            print(f"{name}: {' '.join(command)}")
        return 0
    short = {"all": list(known), "first": [name for name in FIRST if name in known]}
    asked = [name for part in options.parts for name in short.get(part, [part])]
    if unknown := [name for name in asked if name not in known]:
        print(f"unknown part {unknown[0]!r}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(
            f"{sys.executable} lacks {', '.join(missing)}: pip install", *missing, file=sys.stderr
        )
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / DONE
    done: dict[str, float] = json.loads(file.read_text()) if file.is_file() else {}
    wrong: list[str] = []
    for name in asked:  # all of them, whatever one but the probe says
        start_s = time.monotonic()
        limit_s = min(LIMIT_S.get(name, LIMIT_OF_ALL_S), ends_s - start_s)
        if name in done:
            print(f"== {name}: done before", flush=True)
        elif limit_s < LEAST_S:
            wrong.append(f"NOT RUN: {name}: no time left")
        elif verdict := run(name, known[name], options.out, limit_s):
            wrong.append(verdict)
            if name == "probe":
                break
        else:
            done[name] = round(time.monotonic() - start_s, 1)
            write_text(file, json.dumps(done, indent=2) + "\n")
    wrong += verdicts(options.out)
    print("\n".join(wrong) or "no verdict against it", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
