"""The list of deliberate errors stays one that can be run: ``make mutants`` takes half an hour."""

import pytest

from scripts.check import mutants
from spec_bench.system import files
from tests.said import naming


def test_every_mutants_old_text_stands_once_where_it_is_to_be_broken(tmp_path):
    found = mutants.read_mutants()  # raises where a text is gone, or a test
    assert len(found) > 50

    other = tmp_path / "mutants.yaml"
    text = mutants.MUTANTS.read_text(encoding="utf-8")
    files.write_text(other, text.replace(found[0].old, "no such text"))
    with pytest.raises(ValueError, match=naming(found[0].name)):
        mutants.read_mutants(other)
