"""Which cells are compared: those that agree in every column that tells runs apart."""

import pandas as pd
import pytest

from spec_bench.report.data.rows import groups_of
from spec_bench.vocabulary import columns
from spec_bench.vocabulary.columns import Column
from tests.report.rows import EMBEDDED, frame, row


def titles(*rows):
    return [group.title for group in groups_of(frame(*rows))]


def both(**values):
    """A baseline and a chain."""
    return [row(name, spec, **EMBEDDED, **values) for name, spec in (("ar", "-"), ("sd", "2"))]


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("batch_size", (1, 4), ["xsum, batch size 1", "xsum, batch size 4"]),
        ("batching", ("static", "continuous"), ["xsum, batching static", "xsum, batching contin"]),
        ("max_new_tokens", (32, 64), ["xsum, max new tokens 32", "xsum, max new tokens 64"]),
        (
            "draft_temperature",
            (None, 0.0),
            ["xsum, draft temperature not stated", "xsum, draft temperature 0"],
        ),
        ("target", ("mine/a", "mine/b"), ["xsum, target mine/a", "xsum, target mine/b"]),
    ],
)
def test_cells_that_ran_otherwise_are_groups_whose_headings_name_what_differs(name, values, said):
    first, second = (both() for _ in values)
    rows = [{**each, name: values[0]} for each in first]
    rows += [{**each, name: values[1]} for each in second]
    found = groups_of(frame(*rows))
    assert [group.title.startswith(text) for group, text in zip(found, said, strict=True)] == [
        True,
        True,
    ]
    assert [list(group.rows.decoder) for group in found] == [["ar", "sd"]] * 2


def test_what_all_cells_agree_in_is_in_no_heading():
    assert titles(*both(batch_size=4, batching="static")) == ["xsum"]


def test_what_belongs_to_the_task_is_named_only_where_one_task_has_several():
    limits = [*both(task="xsum", max_new_tokens=64), *both(task="squad", max_new_tokens=16)]
    assert titles(*limits) == ["xsum", "squad"]
    more = [*limits, *both(task="squad", max_new_tokens=32)]
    assert titles(*more) == ["xsum", "squad, max new tokens 16", "squad, max new tokens 32"]


def test_a_column_that_an_older_file_lacks_has_one_unknown_value_there():
    older, newer = frame(*both()), frame(*both(batching="static"))
    found = groups_of(pd.concat([older, newer], ignore_index=True))
    assert [group.title for group in found] == [
        "xsum, batching not stated",
        "xsum, batching static",
    ]
    assert [len(group.rows) for group in found] == [2, 2]


def test_what_a_server_leaves_open_is_told_by_its_device():
    ours = both(device="cpu", dtype="float32", threads=1, batch_size=1)
    theirs = both(device="server", batch_size=1)
    assert titles(*ours, *theirs) == ["xsum, device cpu", "xsum, device server"]
    other = both(device="cpu", dtype="float32", threads=2, batch_size=1)
    assert titles(*ours, *theirs, *other) == [
        "xsum, device cpu, threads 1",
        "xsum, device server, threads not stated",
        "xsum, device cpu, threads 2",
    ]


def test_any_column_that_is_marked_so_tells_runs_apart(monkeypatch):
    mine = Column("precision", "precision", "of numbers", "setting", holds="text", apart="run")
    monkeypatch.setattr(columns, "COLUMNS", [*columns.COLUMNS, mine])
    rows = [*both(precision="float32"), *both(task="squad", precision="bfloat16")]
    assert titles(*rows) == ["xsum, precision float32", "squad, precision bfloat16"]
    loose = [{**each, "someones_note": name} for name in "ab" for each in both()]
    assert titles(*loose) == ["xsum"]
