"""The public datasets in their published layouts, filled with the package's own small samples."""

import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spec_bench.tasks.source import EMBEDDED

Rows = Sequence[Mapping[str, Any]]
ROWS = 8  # of each: some to screen, others to confirm


def write_datasets(root):
    """Writes every dataset that ``conf/task`` names below ``root/datasets``."""
    top = root / "datasets"
    for task, place in PARQUET.items():
        _parquet(top / place, _rows(task))
    _lines(top / "databricks/databricks-dolly-15k/databricks-dolly-15k.jsonl", _rows("dolly"))
    questions = top / "HuggingFaceH4/mt_bench_prompts"
    _parquet(questions / "data/train-00000-of-00001-11c2a2ffbf4d6f1f.parquet", _mt_bench())
    _lines(questions / "raw/question.jsonl", _mt_bench())
    for place, card in CARDS.items():
        (top / place / "README.md").write_text(card)
    _spider_archive(top / "HAL-9001/spider-databases/spider_data.zip")


PARQUET = {
    "wmt14_ende": "wmt/wmt14/de-en/test-00000-of-00001.parquet",
    "wmt18_deen": "wmt/wmt18/de-en/test-00000-of-00001.parquet",
    "xsum": "EdinburghNLP/xsum@refs%2Fconvert%2Fparquet/default/test/0000.parquet",
    "alpaca": "tatsu-lab/alpaca/data/train-00000-of-00001-a09b74b3ef9c3b56.parquet",
    "squad": "rajpurkar/squad_v2/squad_v2/validation-00000-of-00001.parquet",
    "spider": "xlangai/spider/spider/validation-00000-of-00001.parquet",
}
CARDS = {
    "rajpurkar/squad_v2": """---
configs:
- config_name: squad_v2
  data_files:
  - split: validation
    path: squad_v2/validation-*
---
""",
    "xlangai/spider": """---
configs:
- config_name: spider
  data_files:
  - split: validation
    path: spider/validation-*
  default: true
---
""",
}


def _rows(task):
    """The sample's first rows, in the fields that the published dataset has."""
    lines = (EMBEDDED / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()[:ROWS]
    rows = [json.loads(line) for line in lines]
    shape = SHAPES.get(task)
    return [shape(row, index) for index, row in enumerate(rows)] if shape else rows


def _alpaca(row, index):
    return {**row, "text": f"Below is an instruction ... {row['instruction']}"}


def _xsum(row, index):
    return {"document": row["document"], "summary": row["summary"], "id": str(30_000_000 + index)}


def _spider(row, index):
    words = {name: row[name].split() for name in ("query", "question")}
    return {
        "db_id": row["db_id"],
        "query": row["query"],
        "question": row["question"],
        "query_toks": words["query"],
        "query_toks_no_value": words["query"],
        "question_toks": words["question"],
    }


SHAPES = {"alpaca": _alpaca, "xsum": _xsum, "spider": _spider}


def _mt_bench():
    """Questions as the hub has them: most categories without references."""
    return [
        {
            "prompt_id": 81 + index,
            "category": row["category"],
            "prompt": row["turns"],
            "reference": row["reference"] if index % 2 else [],
        }
        for index, row in enumerate(_rows("mt_bench"))
    ]


CATEGORIES = (
    *("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"),
    *("translation", "summarization", "qa", "math_reasoning", "rag"),
)


def write_questions(file):
    """A question of each category, as Spec-Bench's file has them: MT-bench's of two turns."""
    rows = []
    for number, category in enumerate(CATEGORIES, start=81):
        turns = [f"Say something about {category}.", "Now say it in fewer words."]
        few = turns if number < 89 else turns[:1]
        rows.append({"question_id": number, "category": category, "turns": few})
    _lines(file, rows)


def _parquet(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), file)


def _lines(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _spider_archive(file):
    """The databases as Spider's own archive packs them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    source = EMBEDDED / "spider" / "database"
    with zipfile.ZipFile(file, "w") as archive:
        for database in sorted(source.glob("*/*.sqlite")):
            name = database.relative_to(source)
            archive.write(database, f"spider_data/database/{name}")
