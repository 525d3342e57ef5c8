"""Everything that is shown has a name for people and a colour."""

from __future__ import annotations

import re
from pathlib import Path

from spec_bench.vocabulary import names
from spec_bench.vocabulary.columns import COLUMNS

CONF = Path(__file__).resolve().parents[1] / "conf"


def test_every_decoder_of_the_configs_has_a_title_and_a_colour() -> None:
    assert {path.stem for path in CONF.glob("decoder/*.yaml")} <= set(names.DECODERS)
    for each in names.DECODERS.values():
        assert each.title
        assert all(re.fullmatch(r"#[0-9A-F]{6}", colour) for colour in each.colour)


def test_no_two_decoders_have_one_title() -> None:
    titles = [each.title for each in names.DECODERS.values()]
    assert [title for title in titles if titles.count(title) > 1] == []


def test_what_is_not_listed_keeps_its_name() -> None:
    assert names.decoder("mine").title == names.task("mine") == names.title("mine") == "mine"
    assert (names.title("rsd_s"), names.title("xsum")) == ("RSD-S", "XSum")
    assert not {each.name for each in COLUMNS} & {*names.DECODERS, *names.TASKS}
