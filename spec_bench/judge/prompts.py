"""The judge's instructions, and what it is shown.

The structure is that of the published single-answer prompts (arXiv:2306.05685, appendix A):
instruction, question, reference where the category needs one, answer between marks, and a rating in
double brackets; for later turns the whole conversation, of which the last answer counts. The
wording is this project's, so scores are not those of the published judge.
"""

from __future__ import annotations

from spec_bench.judge.conversation import Conversation

Messages = list[dict[str, str]]
# Where a judge without the solution errs most (arXiv:2306.05685, section 3.4).
WITH_REFERENCE = frozenset({"math", "reasoning", "coding"})

_TASK = (
    "You grade the answer of an AI assistant to a user's question. Consider whether it helps, is"
    " relevant, correct, deep and creative enough, and as detailed as the question asks for."
)
_LAST = " Grade only the assistant's answer to the user's last question; the rest is context."
_COMPARE = (
    " You are given a reference answer. Compare the assistant's answer with it, find the mistakes"
    " and correct them."
)
_FORMAT = (
    " Explain your verdict briefly and stay objective. Then end with a whole number from 1 (worst)"
    ' to 10 (best), written exactly as "[[rating]]", for example: "Rating: [[5]]".'
)


def judge_messages(conversation: Conversation, turn: int) -> Messages:
    """The chat that asks for the grade of one turn's answer."""
    golds = conversation.references[: turn + 1]
    referenced = conversation.category in WITH_REFERENCE and len(golds) == turn + 1
    instruction = _TASK + (_COMPARE if referenced else "") + (_LAST if turn else "") + _FORMAT
    answers = (*conversation.before(turn), conversation.answers[turn])
    if not turn:
        parts = [("Question", conversation.questions[0])]
        parts += [("Reference answer", golds[0])] if referenced else []
        shown = "\n\n".join(_block(*part) for part in (*parts, ("Assistant's answer", answers[0])))
        return [{"role": "system", "content": instruction}, {"role": "user", "content": shown}]
    questions = conversation.questions[: turn + 1]
    sections = []
    if referenced:
        sections.append(_section("Reference conversation", "Reference answer", questions, golds))
    sections.append(_section("Conversation", "Assistant's answer", questions, answers))
    return [
        {"role": "system", "content": instruction},
        {"role": "user", "content": "\n\n".join(sections)},
    ]


def _section(title: str, name: str, questions: tuple[str, ...], answers: tuple[str, ...]) -> str:
    """A whole conversation under a title."""
    blocks = []
    for number, (question, answer) in enumerate(zip(questions, answers, strict=True), start=1):
        blocks += [_block(f"Question {number}", question), _block(f"{name} {number}", answer)]
    return "\n\n".join([f"=== {title} ===", *blocks])


def _block(name: str, text: str) -> str:
    """A text between marks, so that what it says is not taken for an instruction."""
    return f"[Start of {name}]\n{text}\n[End of {name}]"
