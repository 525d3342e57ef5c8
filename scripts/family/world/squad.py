"""Questions on stories whose answer is a span of the text, or is not there."""

from random import Random

from .lexicon import NAMES
from .stories import draw_story, question, tell


def squad(rng: Random, number: int) -> dict:
    """One sample; about a quarter of them cannot be answered from the context."""
    story = draw_story(rng)
    context = tell(rng, story)
    asked, answer = question(rng, story)
    answers: dict[str, list] = {"text": [answer], "answer_start": [context.index(answer)]}
    if rng.random() < 0.25:
        absent = rng.choice([n for n in NAMES if n not in context])
        asked = rng.choice(
            (
                f"Where does {absent} come from?",
                f"What is the job of {absent}?",
                f"What did {absent} do?",
            )
        )
        answers = {"text": [], "answer_start": []}
    return {
        "id": f"{number:06d}",
        "title": story.town,
        "context": context,
        "question": asked,
        "answers": answers,
    }
