"""Another rule over a decoder's tree: one name in place of the decoder's verifier."""

from functools import partial

import pytest

from spec_bench.core.warp import SamplingSettings
from spec_bench.jobs.config.cells import build_cells, load_decoder, written_cells
from spec_bench.report.papers.recipes import recipe_cells
from spec_bench.settings.configs import conf_dir
from tests.said import naming
from tests.test_conf import composed

LOAD = partial(load_decoder, [conf_dir()])
TREES = ("sd", "spectr", "specinfer", "mcsd", "mcsd_wor", "rsd_c", "rsd_s", "top_and_sample")
ON_HEADS = ("medusa", "redrafter")


def cells_of(wanted, chosen=None, spec=None, temperature=1.0):
    return build_cells(
        written_cells(chosen or {}, spec, wanted, LOAD), SamplingSettings(temperature)
    )


@pytest.mark.parametrize("name", [*TREES, *ON_HEADS])
def test_whole_path_verification_goes_with_every_tree(name):
    wanted = [name, {"decoder": name, "verifier": "traversal"}]
    for temperature in (0.0, 1.0):
        _, plain, other = cells_of(wanted, temperature=temperature)
        assert other.name == f"{name}_traversal"
        assert (other.spec, other.drafts, other.heads) == (plain.spec, plain.drafts, plain.heads)
        assert other.settings["verifier"] == {"rule": "traversal"}
        assert other.settings["tree"] == plain.settings["tree"]


def test_a_drafter_that_is_a_name_drafts_in_place_of_the_decoders_own():
    wanted = {"decoder": "rsd_c", "drafter": "eagle3", "spec": "2-1", "verifier": "traversal"}
    (_, cell) = cells_of([wanted])
    assert cell.title == "eagle3_rsd_c_traversal 2-1"
    assert (cell.drafts, cell.heads) == (0, "eagle3")
    assert cell.settings["drafter"] == {"kind": "eagle3"}
    assert recipe_cells("eagle=rules")[0] == "eagle3_sd:5"  # the report looks for that very name


def test_a_drafter_that_there_is_not_is_refused():
    wanted = [{"decoder": "sd", "drafter": "falcon"}]
    with pytest.raises(ValueError, match=naming("drafter.kind", "falcon")):
        cells_of(wanted)


def test_a_command_line_names_another_rule():
    chosen = dict(composed("decoder=rsd_s", "decoder.verifier=traversal").decoder)
    (_, cell) = cells_of([], chosen, "4x3")
    assert cell.title == "rsd_s_traversal 4x3"


@pytest.mark.parametrize(
    ("rule", "named"),
    [("coin", "verifier.rule must be one of"), ("k_seq", "'k_seq' is exact only")],
)
def test_a_rule_that_is_none_or_does_not_fit_is_refused(rule, named):
    with pytest.raises(ValueError, match=naming(named, rule)):
        cells_of([{"decoder": "rsd_s", "verifier": rule}])
