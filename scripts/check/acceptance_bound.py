"""The most that any exact rule could accept of K candidates of a pair's draft.

    python scripts/check/acceptance_bound.py --temperature 1 --target FOLDER --draft FOLDER

The target samples an answer to each prompt; at some of its positions target and draft give p and q,
and the bounds of ``bound``, beside this file, are averaged over them: K candidates drawn
independently, or without replacement. Without ``--target`` it is the embedded pair.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.check.bound import bound_iid, bound_without_replacement
from scripts.family.embedded_pair import EMBEDDED
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder, resolve_spec
from spec_bench.engine.loading import ModelSpec, load_model, load_tokenizer
from spec_bench.records.types import Request

STEP = 0.5
PLAIN = {"name": "ar", "drafter": {"kind": "none"}, "tree": {"policy": "root"},
         "verifier": {"rule": "recursive_rejection", "replacement": False}}  # fmt: skip


@torch.inference_mode()
def main() -> None:
    """Decodes, and prints a line for each number of candidates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default=str(EMBEDDED / "models" / "target"))
    parser.add_argument("--draft", default=str(EMBEDDED / "models" / "draft_distilled"))
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--positions", type=int, default=4, help="of each answer")
    parser.add_argument("--temperature", type=float, default=1.0, help="above 0")
    parser.add_argument("--candidates", type=int, nargs="+", default=[1, 2, 3, 4, 8])
    options = parser.parse_args()
    if options.temperature <= 0:
        parser.error(f"--temperature must be above 0, got {options.temperature:g}")
    target, draft = (load_model(ModelSpec(each)) for each in (options.target, options.draft))
    if target.vocab_size != draft.vocab_size:
        parser.error(f"vocabularies differ: {target.vocab_size} and {draft.vocab_size} tokens")
    tokenizer = load_tokenizer(options.target)
    lines = (EMBEDDED / "tasks" / "xsum.jsonl").read_text(encoding="utf-8").splitlines()
    sampling = SamplingSettings(temperature=options.temperature)
    plain = build_decoder(resolve_spec(PLAIN, None), target, [], sampling)
    p, q = [], []
    for line in lines[: options.prompts]:
        prompt = tokenizer(f"Article: {json.loads(line)['document']}\nSummary:")["input_ids"]
        answer = plain.generate([Request(line, tuple(prompt), 32)], seed=0)[0].tokens
        ids = torch.tensor([[*prompt, *answer]])
        for model, found in ((target, p), (draft, q)):
            logits = model.module(ids).logits[0, len(prompt) - 1 : -1]
            some = logits[:: max(1, len(logits) // options.positions)]
            found.append((some.double() / options.temperature).softmax(dim=-1))
    both = torch.cat(p), torch.cat(q)
    print(f"means over {len(both[0])} positions\nK  independent  without replacement")
    for count in options.candidates:
        iid, without = bound_iid(*both, count), bound_without_replacement(*both, count, STEP)
        print(f"{count:<2} {iid.mean():>11.4f}  {without.mean():>19.4f}")


if __name__ == "__main__":
    main()
