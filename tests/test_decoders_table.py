"""The documents' table of decoders is made from their YAML."""

import re
from pathlib import Path

from spec_bench.vocabulary.decoders import decoders_table

ROOT = Path(__file__).resolve().parents[1]


def test_the_documents_table_of_decoders_is_the_generated_one():
    """If not: python -m spec_bench.vocabulary.decoders"""
    paths = (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    between = r"<!-- decoders -->\n(.*?)<!-- /decoders -->"
    tables = [table.strip() for text in texts for table in re.findall(between, text, re.DOTALL)]
    assert tables == [decoders_table()]
