"""Small SQLite databases of the world, and questions on them with their SQL."""

import sqlite3
from pathlib import Path
from random import Random

from .lexicon import ANIMALS, COLOURS, FEELINGS, GOODS, JOBS, NAMES, TOWNS

# db -> table -> column -> how a value is drawn; "number" columns are integers.
SCHEMAS: dict[str, dict[str, dict[str, tuple[str, ...] | str]]] = {
    "shop": {
        "product": {"name": tuple(GOODS), "colour": tuple(COLOURS), "price": "number"},
        "customer": {"name": tuple(NAMES), "town": tuple(TOWNS), "age": "number"},
    },
    "farm": {
        "animal": {"kind": tuple(ANIMALS), "town": tuple(TOWNS), "weight": "number"},
        "farmer": {"name": tuple(NAMES), "town": tuple(TOWNS), "age": "number"},
    },
    "school": {
        "teacher": {"name": tuple(NAMES), "mood": tuple(FEELINGS), "age": "number"},
        "pupil": {"name": tuple(NAMES), "town": tuple(TOWNS), "grade": "number"},
    },
    "city": {
        "worker": {"name": tuple(NAMES), "job": tuple(JOBS), "wage": "number"},
        "house": {"town": tuple(TOWNS), "colour": tuple(COLOURS), "size": "number"},
    },
}


def build(db: str, path: Path, rows: int = 40) -> None:
    """Writes one database; its content depends on its name alone."""
    rng = Random(f"database {db}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as connection:
        for table, columns in SCHEMAS[db].items():
            types = ", ".join(
                f"{column} {'INTEGER' if kind == 'number' else 'TEXT'}"
                for column, kind in columns.items()
            )
            connection.execute(f"CREATE TABLE {table} ({types})")
            for _ in range(rows):
                values = [
                    rng.randint(1, 60) if kind == "number" else rng.choice(kind)
                    for kind in columns.values()
                ]
                marks = ", ".join("?" * len(values))
                connection.execute(f"INSERT INTO {table} VALUES ({marks})", values)
    connection.close()


def schema_text(db: str) -> str:
    """``table(col, col, ...)`` lines, in the database's order."""
    return "\n".join(f"{table}({', '.join(columns)})" for table, columns in SCHEMAS[db].items())


def spider(rng: Random) -> dict[str, str]:
    """One question with its SQL."""
    db = rng.choice(list(SCHEMAS))
    table = rng.choice(list(SCHEMAS[db]))
    columns = SCHEMAS[db][table]
    texts = [column for column, kind in columns.items() if kind != "number"]
    number = next(column for column, kind in columns.items() if kind == "number")
    shown, filtered = rng.sample(texts, 2)
    value = rng.choice(columns[filtered])
    bound = rng.randint(5, 55)
    plural = table + "s"
    asked, query = rng.choice(
        (
            (f"How many {plural} are there?", f"SELECT count(*) FROM {table}"),
            (
                f"How many {plural} have the {filtered} {value}?",
                f"SELECT count(*) FROM {table} WHERE {filtered} = '{value}'",
            ),
            (
                f"Show the {shown} of all {plural} with {filtered} {value}.",
                f"SELECT {shown} FROM {table} WHERE {filtered} = '{value}'",
            ),
            (
                f"Show the {shown} of {plural} whose {number} is above {bound}.",
                f"SELECT {shown} FROM {table} WHERE {number} > {bound}",
            ),
            (
                f"What is the average {number} of {plural} with {filtered} {value}?",
                f"SELECT avg({number}) FROM {table} WHERE {filtered} = '{value}'",
            ),
            (
                f"Show {shown} and {number} of the {plural} by {number}, largest first.",
                f"SELECT {shown}, {number} FROM {table} ORDER BY {number} DESC",
            ),
            (
                f"For each {filtered}, how many {plural} are there?",
                f"SELECT {filtered}, count(*) FROM {table} GROUP BY {filtered}",
            ),
            (
                f"What is the largest {number} among {plural} whose {filtered} is {value}?",
                f"SELECT max({number}) FROM {table} WHERE {filtered} = '{value}'",
            ),
        )
    )
    return {"db_id": db, "question": asked, "query": query}
