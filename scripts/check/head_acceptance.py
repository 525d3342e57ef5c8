"""What would be accepted of EAGLE heads' tokens, step by step, on the embedded target's answers.

    python scripts/check/head_acceptance.py --prompts 40

Answers to the shipped XSum sample, of which no head has seen a text, are drawn from the target at
temperature 1; the right tokens are fed back. Of each step the share of best guesses that are the
token drawn, and the mean of sum min(p, q) at temperature 1: what speculative sampling accepts of
one token drawn.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.family.embedded_pair import EMBEDDED, decoder, embedded_pair, embedded_requests
from spec_bench.core.warp import SamplingSettings
from spec_bench.draft.eagle_network import EagleHead
from spec_bench.draft.heads import load_heads
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.loading import load_tokenizer
from spec_bench.train.batches import SequenceBatches
from spec_bench.train.dialogues import Dialogue
from spec_bench.train.loop import Accuracy, measure
from spec_bench.train.trainee import UnrolledHead

STEPS = 6


def main() -> None:
    """Prints a line of Markdown a head."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--new-tokens", type=int, default=48)
    options = parser.parse_args()
    pair = embedded_pair()
    dialogues = answers(pair, options.prompts, options.new_tokens)
    print(f"{len(dialogues)} answers, {sum(sum(each.learned) for each in dialogues)} tokens")
    for name in ("eagle1", "eagle3"):
        found = measured(name, pair[0], dialogues)
        print(f"| {name}, right | " + " | ".join(f"{share:.3f}" for share in found.best) + " |")
        print(f"| {name}, shared | " + " | ".join(f"{mean:.3f}" for mean in found.overlaps) + " |")


def answers(
    pair: tuple[HuggingFaceModel, HuggingFaceModel], count: int, new_tokens: int
) -> list[Dialogue]:
    """The target's own at temperature 1, each behind its prompt."""
    plain = decoder("ar", pair, SamplingSettings(temperature=1.0))
    tokenizer = load_tokenizer(str(EMBEDDED / "models" / "target"))
    ends = (
        token
        for token in range(pair[0].vocab_size)
        if "\n" in tokenizer.decode([token]) or token == tokenizer.eos_token_id
    )
    stop = tuple(ends)  # a summary is one line
    asked = [replace(each, stop_ids=stop) for each in embedded_requests(count, new_tokens)]
    said = plain.generate(asked, seed=0)
    return [
        Dialogue(
            (*request.prompt_ids, *own.tokens),
            (False,) * len(request.prompt_ids) + (True,) * len(own.tokens),
        )
        for request, own in zip(asked, said, strict=True)
    ]


def measured(name: str, target: HuggingFaceModel, dialogues: list[Dialogue]) -> Accuracy:
    """A shipped head on these answers."""
    head = load_heads(str(EMBEDDED / "heads" / name), torch.device("cpu"), torch.float32)
    assert isinstance(head, EagleHead)
    trainee = UnrolledHead(head, STEPS, target.project)
    batches = SequenceBatches(target, dialogues, STEPS, trainee.layers(target.blocks))
    found = measure(trainee, batches, range(len(dialogues)), 1)
    assert found is not None
    return found


if __name__ == "__main__":
    main()
