"""Small files in the shapes that others publish: questions by FastChat, Spec-Bench and EAGLE."""

import json

LONG = (
    "The harbour of Weston was closed for a week after a storm took the roof of the school. " * 12
)
CODE = 'def twice(x: int):\n    """Two x.\n    >>> twice(2)\n    4\n    """\n'
QUESTIONS = {
    "mt_bench": [
        {
            "question_id": 81,
            "category": "writing",
            "turns": ["Write a letter from a lighthouse.", "Now write it without the letter e."],
        },
        {
            "question_id": 101,
            "category": "reasoning",
            "turns": ["Who comes first?", "And last?"],
            "reference": ["Emma comes first.", "Bruno comes last."],
        },
    ],
    "spec_bench": [
        {"question_id": 81, "category": "writing", "turns": ["Write a letter.", "Shorten it."]},
        {"question_id": 161, "category": "translation", "turns": ["Übersetze: Ein Fuß im Regen."]},
        {"question_id": 241, "category": "summarization", "turns": [f"Summarize: {LONG}"]},
        {"question_id": 321, "category": "qa", "turns": ["who was the first on the hill?"]},
        {"question_id": 401, "category": "math_reasoning", "turns": ["What is 7 times 11?"]},
        {"question_id": 481, "category": "rag", "turns": [f"{LONG}\n\nWho closed the harbour?"]},
    ],
    "eagle_alpaca": [
        {
            "question_id": 0,
            "category": "",
            "turns": ["Name a quiet sport."],
            "reference": ["Archery is quiet."],
        },
        {"question_id": 1, "category": "", "turns": ["Name a tree."], "reference": ["The elm."]},
    ],
    "eagle_code": [
        {
            "question_id": 0,
            "category": "code",
            "turns": [f'Complete:\n\n{CODE}'],
            "reference": ["    return 2 * x\n"],
        },
    ],
}  # fmt: skip


def question_file(folder, name):
    """Writes one of ``QUESTIONS`` below a folder, one object a line."""
    file = folder / name / "question.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS[name]))
    return file
