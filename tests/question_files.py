"""Small files in the shapes that others publish: questions by FastChat, Spec-Bench and EAGLE."""

import json

LONG = (
    "The harbour of Weston was closed for a week after a storm took the roof of the school. " * 12
)
CODE = 'def twice(x: int):\n    """Two x.\n    >>> twice(2)\n    4\n    """\n'


def _asked(number, category, *turns, reference=()):
    row = {"question_id": number, "category": category, "turns": [*turns]}
    return {**row, "reference": [*reference]} if reference else row


QUESTIONS = {
    "mt_bench": [
        _asked(81, "writing", "Write a letter from a lighthouse.", "Now without the letter e."),
        _asked(
            101, "reasoning", "Who comes first?", "And last?",
            reference=["Emma comes first.", "Bruno comes last."],
        ),
    ],
    "spec_bench": [
        _asked(81, "writing", "Write a letter.", "Shorten it."),
        _asked(161, "translation", "Übersetze: Ein Fuß im Regen."),
        _asked(241, "summarization", f"Summarize: {LONG}"),
        _asked(321, "qa", "who was the first on the hill?"),
        _asked(401, "math_reasoning", "What is 7 times 11?"),
        _asked(481, "rag", f"{LONG}\n\nWho closed the harbour?"),
    ],
    "eagle_alpaca": [
        _asked(0, "", "Name a quiet sport.", reference=["Archery is quiet."]),
        _asked(1, "", "Name a tree.", reference=["The elm."]),
    ],
    "eagle_code": [_asked(0, "code", f"Complete:\n\n{CODE}", reference=["    return 2 * x\n"])],
}  # fmt: skip


def written(file, *lines):
    """A file of these lines: objects, or text as it is."""
    file.parent.mkdir(parents=True, exist_ok=True)
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return file


def question_file(folder, name):
    return written(folder / name / "question.jsonl", *QUESTIONS[name])
