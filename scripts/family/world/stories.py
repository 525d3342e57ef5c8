"""Short news stories with facts that can be asked for and summed up."""

from random import Random
from typing import NamedTuple

from .lexicon import (
    ANIMALS,
    BUILDINGS,
    COLOURS,
    DAYS,
    FEELINGS,
    GOODS,
    JOBS,
    NAMES,
    NUMBERS,
    PLACES,
    TOWNS,
    WEATHER,
)


class Story(NamedTuple):
    """The facts of one story."""

    name: str
    job: str
    town: str
    day: str
    deed: str
    object: str
    place: str
    witness: str
    feeling: str
    weather: str
    guests: str


DEEDS = ("opened", "found", "sold", "won", "built", "saved")


def draw_story(rng: Random) -> Story:
    """Facts for one story."""
    name, witness = rng.sample(NAMES, 2)
    deed = rng.choice(DEEDS)
    number = rng.choice(list(NUMBERS))
    if deed in ("opened", "built"):
        thing = f"a {rng.choice(('new', 'small', 'large'))} {rng.choice(BUILDINGS)}"
    elif deed == "saved":
        thing = f"{number} {rng.choice(list(ANIMALS.values()))[0]}"
    elif deed == "won":
        thing = f"the {rng.choice(('boat', 'horse', 'singing', 'cooking', 'chess'))} contest"
    else:
        thing = f"{number} {rng.choice(list(COLOURS))} {rng.choice(list(GOODS.values()))[0]}"
    return Story(
        name,
        rng.choice(list(JOBS)),
        rng.choice(TOWNS),
        rng.choice(list(DAYS)),
        deed,
        thing,
        rng.choice(list(PLACES.values()))[0],
        witness,
        rng.choice(FEELINGS),
        rng.choice(WEATHER),
        rng.choice(list(NUMBERS)),
    )


def tell(rng: Random, story: Story) -> str:
    """The story as three to five sentences."""
    s = story
    opening = rng.choice(
        (
            f"{s.name}, a {s.job} from {s.town}, {s.deed} {s.object} on {s.day}.",
            f"On {s.day} {s.name}, a {s.job} from {s.town}, {s.deed} {s.object}.",
        )
    )
    body = [
        f"It happened {s.place}.",
        rng.choice((f"The day was {s.weather}.", f"It was a {s.weather} day.")),
        f"{s.witness} was there and felt {s.feeling}.",
        rng.choice((f"About {s.guests} people came to watch.", f"Some {s.guests} people saw it.")),
    ]
    extra = body[1:]
    rng.shuffle(extra)
    return " ".join([opening, body[0], *extra[: rng.randint(1, 3)]])


def summarise(rng: Random, story: Story) -> str:
    """One sentence with who, what and where."""
    s = story
    who = rng.choice((f"A {s.job} from {s.town}", f"{s.name}, a {s.job} from {s.town},"))
    verb = "has " + {"won": "won", "built": "built"}.get(s.deed, s.deed)
    tail = rng.choice((f"on {s.day}", f"{s.place}", f"{s.place} on {s.day}"))
    return f"{who} {verb} {s.object} {tail}."


def question(rng: Random, story: Story) -> tuple[str, str]:
    """A question about the story's first two sentences and the words that answer it."""
    s = story
    return rng.choice(
        (
            (f"Who {s.deed} {s.object}?", s.name),
            (f"What did {s.name} {_base(s.deed)}?", s.object),
            (f"Where does {s.name} come from?", s.town),
            (f"What is the job of {s.name}?", s.job),
            (f"When was it that {s.name} {s.deed} {s.object}?", s.day),
        )
    )


def _base(deed: str) -> str:
    return {
        "opened": "open",
        "found": "find",
        "sold": "sell",
        "won": "win",
        "built": "build",
        "saved": "save",
    }[deed]
