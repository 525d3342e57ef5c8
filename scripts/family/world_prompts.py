"""Writes fresh prompts of the embedded world's eight tasks: ``heads.sh`` has them answered.

One JSON object a line, ``{"task": ..., "prompt": ...}``; a later turn of a dialogue brings the
earlier ones with their reference answers.
"""

import argparse
import json
import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.family.world.samples import TASKS, draw_sample, turns

END = "</s>"


def draw_prompt(rng: Random) -> dict[str, str]:
    """A prompt of a task drawn evenly; one of its turns where it has several."""
    task = rng.choice(TASKS)
    dialogue = turns(task, draw_sample(task, rng))
    last = rng.randrange(len(dialogue))
    earlier = "".join(f"{prompt}{answer}{END}" for prompt, answer in dialogue[:last])
    return {"task": task, "prompt": earlier + dialogue[last][0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=200)
    options = parser.parse_args()
    rng = Random(options.seed)
    options.file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(draw_prompt(rng), ensure_ascii=False) for _ in range(options.count)]
    options.file.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
