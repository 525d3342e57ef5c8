"""Sentence pairs in German and English: a verb-final perfect tense against a simple past."""

from random import Random

from .lexicon import COLOURS, DAYS, GOODS, JOBS, NAMES, NUMBERS, PLACES, TOWNS, VERBS


def _clause(rng: Random, *, german_verb_last: bool) -> tuple[str, str]:
    """(German, English) of one clause without its full stop; both begin with the subject or day."""
    name, verb = rng.choice(NAMES), rng.choice(VERBS)
    if rng.random() < 0.4:
        job, german_job = rng.choice(list(JOBS.items()))
        german_subject, subject = f"der {german_job} {name}", f"the {job} {name}"
    else:
        german_subject, subject = name, name
    number, german_number = rng.choice(list(NUMBERS.items()))
    colour, german_colour = rng.choice(list(COLOURS.items()))
    goods, german_goods = rng.choice(list(GOODS.values()))
    thing, german_thing = (
        f"{number} {colour} {goods}",
        f"{german_number} {german_colour} {german_goods}",
    )
    where, german_where = rng.choice(
        [*PLACES.values(), *((f"in {town}", f"in {town}") for town in rng.sample(TOWNS, 8))]
    )
    day, german_day = rng.choice(list(DAYS.items()))
    past = rng.choice(verb.pasts)
    timed = rng.random() < 0.6
    if german_verb_last:
        german = f"{german_subject} {german_thing} {german_where} {verb.participle} hat"
    elif timed:
        german = (
            f"am {german_day} hat {german_subject} {german_thing} {german_where} {verb.participle}"
        )
    else:
        german = f"{german_subject} hat {german_thing} {german_where} {verb.participle}"
    english = f"{subject} {past} {thing} {where}"
    if timed and not german_verb_last:
        front = rng.random() < 0.5
        english = f"on {day} {english}" if front else f"{english} on {day}"
    return german, english


def sentence_pair(rng: Random) -> dict[str, str]:
    """One pair {"de", "en"} of one or two clauses."""
    german, english = _clause(rng, german_verb_last=False)
    kind = rng.random()
    if kind < 0.35:
        more_german, more_english = _clause(rng, german_verb_last=False)
        german, english = f"{german}, und {more_german}", f"{english}, and {more_english}"
    elif kind < 0.75:
        more_german, more_english = _clause(rng, german_verb_last=True)
        conjunction = rng.choice((" because", " since"))
        german, english = f"{german}, weil {more_german}", f"{english}{conjunction} {more_english}"
    return {"de": _sentence(german), "en": _sentence(english)}


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
