"""The model card, written from what was measured."""

from pathlib import Path
from typing import Any


def write_card(card: dict[str, Any], plan: Any, path: Path) -> None:
    """Writes the card as Markdown.

    Args:
        card: sizes, training facts, scores, acceptance rates, seeds.
        plan: the sizes asked for.
        path: where it goes.
    """
    lines = [
        "# The embedded family",
        "",
        "Three small Llama models trained from scratch on text written by `scripts/family/world`,",
        "a generator of a small world in eight tasks. Trained by its `train.py`; no outside",
        "text and no outside weights. Weights are stored in float16 and were measured as stored.",
        "",
        "| model | parameters | layers x width |",
        "| --- | ---: | --- |",
        f"| target | {card['sizes']['target']:,} | {plan.shallow * plan.times} x {plan.width} |",
        f"| draft | {card['sizes']['draft']:,} | 1 x {plan.draft_width} |",
        f"| draft_distilled | {card['sizes']['draft_distilled']:,} | 1 x {plan.draft_width} |",
        "",
        "## Training",
        "",
        f"The target began as {plan.shallow} layers; each was then repeated {plan.times} times and",
        "trained on (progressive stacking). AdamW, warm-up, constant rate, linear decay; float32.",
        "The distilled draft starts from the plain one and learns the target's distribution on",
        "answers that the target wrote at temperatures 1, 0.7 and 0.3. Loss: weighted nats per",
        "token (prompt tokens count 0.2); for the distilled draft KL(target || draft) per token.",
        f"Machine: {card['machine']}. Seeds: {card['seeds']}.",
        "",
        "| stage | steps | tokens (padded) | last loss | seconds |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {name} | {fact['steps']:,} | {fact['tokens']:,} | {fact['loss']:.3f} "
        f"| {fact['seconds']:,.0f} |"
        for name, fact in card["training"].items()
    ]
    lines += [
        "",
        "## Greedy scores on the shipped samples",
        "",
        "BLEU, ROUGE-2 and exact match as fractions; SQL and small text jobs compared as text.",
        "The last column is the share of the shipped prompts that the training text contains as",
        "well: none where the world is large, most where few different questions exist.",
        "",
        "| task | target | draft | draft_distilled | seen in training |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {task} | "
        + " | ".join(f"{card['scores'][m].get(task, '')}" for m in card["sizes"])
        + f" | {card['seen'][task]:.0%} |"
        for task in card["seen"]
    ]
    lines += [
        "",
        "## Acceptance of one draft token",
        "",
        "Mean over tokens that the target wrote itself: agreement of the argmaxes at temperature",
        "0, sum of min(p, q) at temperature 1.",
        "",
        "| task | draft, T=0 | draft, T=1 | distilled, T=0 | distilled, T=1 |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for task, plain in card["acceptance"]["draft"].items():
        aligned = card["acceptance"]["draft_distilled"][task]
        values = (plain["0"], plain["1"], aligned["0"], aligned["1"])
        lines.append(f"| {task} | " + " | ".join(f"{value:.2f}" for value in values) + " |")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
