"""A search of a task with few rows: both stages share them where that is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from spec_bench.jobs.config.config import ConfirmSettings
from spec_bench.jobs.config.settings import shared
from spec_bench.tasks import RandomPrompts
from spec_bench.tasks.random_prompts import RandomSource


@dataclass
class Asked:
    """Of a job's settings what is read here."""

    prompts: int | None = 10
    confirm: ConfirmSettings | None = field(
        default_factory=lambda: ConfirmSettings(30, best=3, share=True)
    )


def split(rows, **changed):
    task = RandomPrompts("random", RandomSource("random"), 8, rows, 0)
    asked = Asked(**changed)
    return shared(asked, task).prompts


@pytest.mark.parametrize(("rows", "first"), [(2, 1), (8, 2), (14, 4), (15, 10), (40, 10), (99, 10)])
def test_few_rows_are_shared_and_many_are_not(rows, first):
    assert split(rows) == first


def test_a_search_that_does_not_share_wants_fresh_rows():
    confirm = ConfirmSettings(30)
    assert split(11, confirm=confirm) == 10 and split(8, confirm=None) == 10
    for rows, said in (8, "has 8 prompts"), (10, "prompts=10 leaves none fresh"):
        with pytest.raises(ValueError, match=said):
            split(rows, confirm=confirm)
    with pytest.raises(ValueError, match="has 1 prompt, "):
        split(1)
