"""One entry for all tasks: draw a sample, and render it as the dialogue a model sees."""

from random import Random
from typing import Any

from .chat import alpaca, dolly, mt_bench
from .databases import schema_text, spider
from .squad import squad
from .stories import draw_story, summarise, tell
from .translation import sentence_pair

TASKS = ("wmt18_deen", "wmt14_ende", "xsum", "dolly", "alpaca", "mt_bench", "squad", "spider")
CHAT_TASKS = ("dolly", "alpaca", "mt_bench")


def draw_sample(task: str, rng: Random, number: int = 0) -> dict[str, Any]:
    """A sample in the field names of the public dataset."""
    if task in ("wmt18_deen", "wmt14_ende"):
        return {"translation": sentence_pair(rng)}
    if task == "xsum":
        story = draw_story(rng)
        return {
            "document": tell(rng, story),
            "summary": summarise(rng, story),
            "id": f"{number:06d}",
        }
    if task == "squad":
        return squad(rng, number)
    if task == "mt_bench":
        return mt_bench(rng, number)
    return {"dolly": dolly, "alpaca": alpaca, "spider": spider}[task](rng)


def turns(task: str, sample: dict[str, Any]) -> list[tuple[str, str]]:
    """(prompt, answer) per turn: what follows the beginning-of-sequence token.

    The formats are those of ``conf/task``.
    """
    s = sample
    if task == "wmt18_deen":
        pair = s["translation"]
        return [(f"Translate German to English:\nGerman: {pair['de']}\nEnglish:", f" {pair['en']}")]
    if task == "wmt14_ende":
        pair = s["translation"]
        return [(f"Translate English to German:\nEnglish: {pair['en']}\nGerman:", f" {pair['de']}")]
    if task == "xsum":
        return [(f"Article: {s['document']}\nSummary:", f" {s['summary']}")]
    if task == "squad":
        answer = s["answers"]["text"][0] if s["answers"]["text"] else "unanswerable"
        prompt = f"Title: {s['title']}\nContext: {s['context']}\nQuestion: {s['question']}\nAnswer:"
        return [(prompt, f" {answer}")]
    if task == "spider":
        prompt = f"Schema:\n{schema_text(s['db_id'])}\nQuestion: {s['question']}\nSQL:"
        return [(prompt, f" {s['query']}")]
    if task == "dolly":
        content = f"{s['context']}\n\n{s['instruction']}" if s["context"] else s["instruction"]
        return [(_chat(content), s["response"])]
    if task == "alpaca":
        content = f"{s['instruction']}\n\n{s['input']}" if s["input"] else s["instruction"]
        return [(_chat(content), s["output"])]
    return [(_chat(turn), reply) for turn, reply in zip(s["turns"], s["reference"], strict=True)]


def _chat(content: str) -> str:
    return f"<|user|>\n{content}\n<|assistant|>\n"
