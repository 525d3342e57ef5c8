"""Instructions and answers: closed questions, free writing, lists, small text jobs, two turns."""

from random import Random

from .lexicon import (
    ANIMALS,
    COLOURS,
    FEELINGS,
    GOODS,
    JOBS,
    NAMES,
    NUMBERS,
    OPPOSITES,
    PLACES,
    TOWNS,
    VERBS,
    WEATHER,
)
from .stories import draw_story, question, tell


def _free_sentence(rng: Random, name: str) -> str:
    """One sentence of many possible ones about a person."""
    goods = rng.choice(list(GOODS.values()))[0]
    animals = rng.choice(list(ANIMALS.values()))[0]
    did = rng.choice(rng.choice(VERBS).pasts)
    return rng.choice(
        (
            f"{name} went to {rng.choice(TOWNS)} and {did} {goods}.",
            f"The morning was {rng.choice(WEATHER)} and {name} felt {rng.choice(FEELINGS)}.",
            f"{name} likes {animals} more than {goods}.",
            f"Later {name} met a {rng.choice(list(JOBS))} {rng.choice(list(PLACES.values()))[0]}.",
            f"In the evening {name} was {rng.choice(FEELINGS)} and {rng.choice(FEELINGS)}.",
            f"{name} has {rng.choice(list(NUMBERS))} {rng.choice(list(COLOURS))} {goods} at home.",
        )
    )


def dolly(rng: Random) -> dict[str, str]:
    """One sample of the high-entropy instruction task."""
    kind = rng.random()
    if kind < 0.3:
        story = draw_story(rng)
        asked, answer = question(rng, story)
        opening = rng.choice(("The answer is", "According to the text, it is", "It is"))
        tail = rng.choice(("This happened", "All of this was", "It took place"))
        return {
            "instruction": asked,
            "context": tell(rng, story),
            "response": f"{opening} {answer}. {tail} {story.place}.",
            "category": "closed_qa",
        }
    if kind < 0.7:
        name = rng.choice(NAMES)
        what = rng.choice(("a short story", "a few sentences", "a little note", "something"))
        sentences = [_free_sentence(rng, name) for _ in range(rng.randint(3, 4))]
        return {
            "instruction": f"Write {what} about {name}.",
            "context": "",
            "response": " ".join(sentences),
            "category": "creative_writing",
        }
    count = rng.choice(("three", "four", "five"))
    size = {"three": 3, "four": 4, "five": 5}[count]
    place = rng.choice(("the market", "the harbour", "a feast", "a long trip", "the school"))
    items = [
        f"- {rng.choice(list(NUMBERS))} {rng.choice(list(COLOURS))} {goods}"
        for goods in rng.sample([plural for plural, _ in GOODS.values()], size)
    ]
    return {
        "instruction": f"Name {count} things to bring to {place}.",
        "context": "",
        "response": "\n".join(items),
        "category": "brainstorming",
    }


def alpaca(rng: Random) -> dict[str, str]:
    """One small text job with an exact answer, said in a sentence or two."""
    name, verb = rng.choice(NAMES), rng.choice(VERBS)
    goods = rng.choice(list(GOODS.values()))[0]
    number, colour = rng.choice(list(NUMBERS)), rng.choice(list(COLOURS))
    town = rng.choice(TOWNS)
    job = rng.randrange(5)
    if job == 0:
        instruction = "Rewrite the sentence in the past tense."
        given = f"{name} {verb.present} {number} {colour} {goods} in {town}."
        output = f"{name} {verb.pasts[0]} {number} {colour} {goods} in {town}."
    elif job == 1:
        instruction = "Write the opposite of each word."
        words = rng.sample(list(OPPOSITES), 4)
        given = ", ".join(words)
        output = ", ".join(f"{word} becomes {OPPOSITES[word]}" for word in words) + "."
    elif job == 2:
        other = rng.choice([candidate for candidate in NAMES if candidate != name])
        instruction = f"Replace the name with {other}."
        given = (
            f"{name} {verb.pasts[0]} {number} {goods} and felt {rng.choice(FEELINGS)} in {town}."
        )
        output = given.replace(name, other)
    elif job == 3:
        instruction = "Write the list in reverse order."
        words = rng.sample([plural for plural, _ in GOODS.values()], 4)
        given, output = ", ".join(words), ", ".join(reversed(words)) + "."
    else:
        instruction = "Describe the person in one or two sentences."
        work, feeling = rng.choice(list(JOBS)), rng.choice(FEELINGS)
        given = f"name: {name}; job: {work}; town: {town}; mood: {feeling}"
        opening = rng.choice(
            (f"{name} is a {work} who lives in {town}", f"{name} works as a {work} in {town}")
        )
        mood = rng.choice((f" and is {feeling} today.", f". Today {name} feels {feeling}."))
        output = opening + mood
    return {"instruction": instruction, "input": given, "output": output}


def mt_bench(rng: Random, number: int) -> dict:
    """Two turns; the second needs the first one's answer."""
    name, other = rng.sample(NAMES, 2)
    town = rng.choice(TOWNS)
    first = rng.choice((f"Describe a day of {name} in {town}.", f"Tell me about {name} in {town}."))
    answer = f"{name} lives in {town}. " + " ".join(_free_sentence(rng, name) for _ in range(2))
    if rng.random() < 0.6:
        second, reply = f"Tell it again about {other}.", answer.replace(name, other)
        category = "rewriting"
    else:
        second = "Which town and which person was it?"
        reply = rng.choice(
            (f"It was {name} in {town}.", f"The person was {name}, the town {town}.")
        )
        category = "extraction"
    return {
        "question_id": number,
        "category": category,
        "turns": [first, second],
        "reference": [answer, reply],
    }
