"""Speed against transformers' generation in rounds, by threads: the first part of ``make bench``.

The embedded pair, greedy, both sides on the same prompts in turn, prompt by prompt and with the
order turned each time, prefill included on both. A round is all prompts once; its ratio is their
seconds over ours (above 1: ours is faster). Printed are medians and quartiles over the rounds, and
what share of decoding passes outside forward passes. The tables go to ``--out`` in Markdown.
"""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.engine import GREEDY, ours, plain_embedded_pair, theirs
from scripts.family.embedded_pair import ROOT, SPECS, decoder, embedded_pair, embedded_requests
from spec_bench.core.warp import SamplingSettings
from spec_bench.engine.plain import COMPILE
from spec_bench.records.types import Request

Run = Callable[[Request], list[int]]
LOOKED_UP = 10  # tokens; the depth of ``prompt_lookup``'s tree
RIVALS = {
    "ar": "generate()",
    "sd": "generate(assistant_model=...)",
    "prompt_lookup": f"generate(prompt_lookup_num_tokens={LOOKED_UP})",
}
HOSTS = ("ar", "sd", "rsd_s")
HEAD = ("threads", "`engine.compile`", "ours", "theirs", "ratio", "quartiles", "ours, tokens/s",
        "theirs, tokens/s", "equal answers")  # fmt: skip


def rounds(one: Run, other: Run, requests: Sequence[Request], count: int) -> list[tuple]:
    """(our seconds, their seconds, equal answers) of each round; the first requests warm both."""
    for request in requests[:2]:
        one(request), other(request)
    found = []
    for number in range(count):
        seconds, equal = [0.0, 0.0], 0
        for index, request in enumerate(requests):
            answers: list[list[int]] = [[], []]
            for side in (0, 1) if (index + number) % 2 else (1, 0):
                start_s = time.perf_counter()
                answers[side] = (one, other)[side](request)
                seconds[side] += time.perf_counter() - start_s
            equal += answers[0] == answers[1]
        found.append((*seconds, equal))
    return found


def spread(values: Sequence[float], form: str) -> tuple[str, str]:
    """The median and the quartiles, written alike."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return form.format(middle), f"{form.format(low)}..{form.format(high)}"


def against(threads: int, how: str, requests: Sequence[Request], count: int) -> list[list[str]]:
    """One line a decoder."""
    torch._dynamo.reset()
    pair, (plain, assistant) = embedded_pair(how), plain_embedded_pair()
    rivals = {
        "ar": theirs(plain, None),
        "sd": theirs(plain, assistant),
        "prompt_lookup": theirs(plain, None, prompt_lookup_num_tokens=LOOKED_UP),
    }
    tokens = sum(request.max_new_tokens for request in requests)
    lines = []
    for name, rival in rivals.items():
        found = rounds(ours(decoder(name, pair, GREEDY)), rival, requests, count)
        ratio = spread([their_s / our_s for our_s, their_s, _ in found], "{:.2f}")
        rates = [statistics.median(tokens / line[side] for line in found) for side in (0, 1)]
        equal = f"{min(line[2] for line in found)}/{len(requests)}"
        ours_is = f"{name} {SPECS[name]}" if name in SPECS else name
        lines.append(
            [str(threads), how, ours_is, RIVALS[name], *ratio, *(f"{r:.0f}" for r in rates), equal]
        )
        print(" | ".join(lines[-1]), flush=True)
    return lines


def overheads(threads: int, requests: Sequence[Request], count: int) -> list[list[str]]:
    """One line a decoder: the share of decoding outside forward passes, at temperature 0.3."""
    pair = embedded_pair()
    built = {name: decoder(name, pair, SamplingSettings(0.3)) for name in HOSTS}
    shares: dict[str, list[float]] = {name: [] for name in HOSTS}
    for run in built.values():
        run.generate(requests[:1], 0)
    for _ in range(count):
        for name, run in built.items():
            made = [run.generate([request], 0)[0] for request in requests]
            forward_s = sum(one.draft_s + one.target_s for one in made)
            shares[name].append(1 - forward_s / sum(one.decode_s for one in made))
    lines = [
        [str(threads), f"{name} {SPECS[name]}", *spread(shares[name], "{:.1%}")] for name in HOSTS
    ]
    for line in lines:
        print(" | ".join(line), flush=True)
    return lines


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    rows = [head, ["---"] * len(head), *lines]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def asked() -> str:
    """The command that makes the page."""
    given = sys.argv[1:]
    return " ".join(["python scripts/bench/rounds.py", *given]) if given else "make bench"


def page(speed: list[list[str]], hosts: list[list[str]], prompts: int, new: int, count: int) -> str:
    """What stands in the file."""
    about = (
        f"torch {torch.__version__}, transformers {transformers.__version__}, "
        f"{platform.processor() or platform.machine()}, float32, batch 1; {prompts} prompts of "
        f"{new} new tokens, {count} rounds, medians and quartiles over rounds."
    )
    return (
        "# Speed against transformers on a CPU\n\n"
        f"`{asked()}`: the embedded pair, greedy, both sides in turn. {about} "
        "Ratio: their seconds over ours, prefill included; above 1 ours is faster.\n\n"
        f"{markdown(HEAD, speed)}\n"
        "Share of decoding outside forward passes, `engine.compile=none`, temperature 0.3:\n\n"
        f"{markdown(('threads', 'decoder', 'host overhead', 'quartiles'), hosts)}"
    )


def main() -> None:
    """Runs all rounds, prints them and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--compile", nargs="+", choices=COMPILE, default=["none", "inductor"])
    default = ROOT / "results" / "benchmarks" / "speed-cpu.md"
    parser.add_argument("--out", type=Path, default=default)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds must be at least 2 for quartiles, got {options.rounds}")
    requests = embedded_requests(options.prompts, options.new_tokens)
    speed, hosts = [], []
    for threads in options.threads:
        torch.set_num_threads(threads)
        for how in options.compile:
            speed += against(threads, how, requests, options.rounds)
        hosts += overheads(threads, requests, options.rounds)
    text = page(speed, hosts, options.prompts, options.new_tokens, options.rounds)
    options.out.write_text(text, encoding="utf-8")
    print(f"\n{text}")


if __name__ == "__main__":
    main()
