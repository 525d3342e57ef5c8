"""Everything that is shown has a name for people, and decoders a colour and a marker."""

import re

import pytest
import yaml

from spec_bench.jobs.config.cells import load_decoder
from spec_bench.report.papers.items import recipe_cells
from spec_bench.settings.configs import conf_dir, experiments_dir
from spec_bench.vocabulary import decoders, names
from spec_bench.vocabulary.columns import COLUMNS
from spec_bench.vocabulary.decoders import COLOURS, find_decoder

FILES = sorted((conf_dir() / "decoder").glob("*.yaml"))
PAPERS = sorted(experiments_dir().glob("*/paper.yaml"))
RECIPES = [path for path in experiments_dir().glob("*/*.yaml") if path not in PAPERS]
IN_FILES = {path.stem for path in FILES}
IN_PAPERS = {
    name for path in PAPERS for name in yaml.safe_load(path.read_text()).get("decoders", ())
}
IN_RECIPES = {
    cell.partition(":")[0]
    for path in RECIPES
    for cell in recipe_cells(f"{path.parent.name}={path.stem}")
}
ALL = sorted({*IN_FILES, *IN_PAPERS, *IN_RECIPES})
MINE = """
name: mine
drafter: {kind: language_model}
tree: {policy: chain, depth: 3}
verifier: {rule: recursive_rejection, replacement: false}
display: {title: My own, colour: sky, marker: D}
"""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_decoder_of_the_configs_says_how_it_is_shown(path):
    display = yaml.safe_load(path.read_text(encoding="utf-8"))["display"]
    assert {"title", "colour", "marker", "tree", "source"} <= display.keys()
    assert all(display.values())
    shown = names.decoder(path.stem)
    assert (shown.title, shown.marker) == (display["title"], display["marker"])
    assert shown.colour == COLOURS[display["colour"]]
    assert all(re.fullmatch(r"#[0-9A-F]{6}", colour) for colour in shown.colour)


def test_every_cell_of_a_recipe_has_a_title():
    assert len(IN_RECIPES - IN_FILES) > 10
    assert [name for name in ALL if find_decoder(name) is None] == []


def test_no_paper_says_how_a_decoder_of_the_configs_is_shown():
    assert not IN_PAPERS & IN_FILES


def test_no_two_decoders_have_one_title():
    titles = [names.decoder(name).title for name in ALL]
    assert [title for title in titles if titles.count(title) > 1] == []


@pytest.mark.parametrize(
    ("name", "title", "colour", "marker"),
    [
        ("eagle3_sd", "EAGLE-3, SD", "blue", "o"),  # a drafter in place of the decoder's
        ("dyspec_traversal", "DySpec, traversal", "sky", "D"),  # a rule likewise
        ("eagle3_dyspec_traversal", "EAGLE-3, DySpec, traversal", "sky", "D"),
        ("spectr_traversal", "SpecTr's paths, traversal", "sky", "P"),  # a paper says so
        ("eagle3_spectr_traversal", "EAGLE-3, SpecTr's paths, traversal", "sky", "P"),
    ],
)
def test_a_cell_that_replaces_a_part_is_shown_by_its_parts(name, title, colour, marker):
    assert find_decoder(name) == decoders.Decoder(title, COLOURS[colour], marker)


def test_what_is_not_listed_keeps_its_name():
    assert names.decoder("mine").title == names.task("mine") == names.title("mine") == "mine"
    assert find_decoder("redrafter_2") is None
    assert (names.title("rsd_s"), names.title("xsum")) == ("RSD-S", "XSum")
    assert not {each.name for each in COLUMNS} & {*ALL, *names.TASKS}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder of configs beside ours, with the file of one decoder."""
    path = tmp_path / "conf" / "decoder" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(MINE, encoding="utf-8")
    folders = (conf_dir(), tmp_path / "conf"), (experiments_dir(),)
    monkeypatch.setattr(decoders, "_folders", lambda: folders)
    return path


def test_another_packages_decoder_is_shown_as_its_yaml_says(mine):
    assert names.decoder("mine") == decoders.Decoder("My own", COLOURS["sky"], "D")
    assert names.title("mine_traversal") == "My own, traversal"
    assert "display" not in load_decoder([mine.parents[1]], "mine")


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("sky", "red", "display.colour must be one of blue, vermillion, green, purple, orange, "),
        ("marker: D", "marker: x", "display.marker must be one of o, s, ^, D, v, P, X, got 'x'"),
        ("marker", "shape", "display.shape does not belong to how a decoder is shown, which has "),
        ("{title: My own, colour: sky, marker: D}", "red", "display must be a mapping, got 'red'"),
    ],
)
def test_a_wrong_colour_or_marker_is_named_with_its_file_and_the_choices(mine, right, wrong, said):
    mine.write_text(MINE.replace(right, wrong), encoding="utf-8")
    for ask in (lambda: load_decoder([mine.parents[1]], "mine"), lambda: find_decoder("mine")):
        with pytest.raises(ValueError, match=re.escape(f"{mine}: {said}")) as caught:
            ask()
        assert "\n" not in str(caught.value)
