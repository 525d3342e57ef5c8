"""A sink of another package is found by its name in the config."""

import pytest

from spec_bench.sinks.sink import build_sinks, sink, sink_settings


class Kept:
    """Keeps what it is handed."""

    def __init__(self, told, folder):
        self.told, self.folder = told, folder

    def take(self, cells, rows):
        self.taken = (cells, rows)


def test_a_sink_of_another_package_is_built_from_its_own_part(tmp_path):
    sink("kept")(Kept)
    try:
        settings = sink_settings({"table": False, "kept": {"where": "here"}})
        (found,) = build_sinks(settings, tmp_path)
    finally:
        sink.forget("kept")
    assert isinstance(found, Kept)
    assert (found.told, found.folder) == ({"where": "here"}, tmp_path)
    assert (settings.table, settings.progress) == (False, True)


def test_an_unknown_sink_is_refused_by_name():
    with pytest.raises(ValueError, match=r"sink\.kept"):
        sink_settings({"kept": {}})


def test_wandb_is_off_unless_it_is_asked_for(tmp_path):
    assert build_sinks(sink_settings({}), tmp_path) == []
    (found,) = build_sinks(sink_settings({"wandb": {"enabled": True}}), tmp_path)
    assert type(found).__name__ == "Wandb"
