"""Cells: other rules and drafters, grids and lists of trees, fitted ones, stated acceptance."""

import re
from dataclasses import replace

import pytest
import yaml

from spec_bench import load_pair
from spec_bench.jobs.app import build_unpinned_settings, run_config
from spec_bench.jobs.config.cells import (
    Cell,
    build_unique_cells,
    expand_grid,
    list_trees,
    parse_cell,
    parse_cells,
)
from spec_bench.jobs.config.compose import compose_config, parse_request, read_chosen_tree_lists
from spec_bench.jobs.config.config import PRINTED_SOURCE
from spec_bench.jobs.config.fitting import FittedTrees, TreeFit, read_tree_fit
from spec_bench.jobs.config.pair import Pair, PairSettings
from spec_bench.jobs.config.simulation import read_block_efficiencies
from spec_bench.records import cell_folder
from spec_bench.records.sampling import SamplingSettings
from spec_bench.report.papers.items import list_recipe_cells
from spec_bench.settings.configs import get_conf_dir, list_conf_dirs
from spec_bench.vocabulary.decoders import load_decoder_settings
from spec_bench.vocabulary.names import get_decoder_style
from spec_bench.vocabulary.spec import parse_tree_spec
from tests import warm
from tests.commands import fit as fit_tree
from tests.jobs.tiny import cut, eagle_heads, main, overrides, rows_of, tokens_of
from tests.said import naming, one_line

TREES = ("sd", "spectr", "specinfer", "mcsd", "mcsd_wor", "rsd_c", "rsd_s", "top_and_sample")


def cells_of(*wanted, chosen=None, spec=None, temperature=1.0):
    sampling = SamplingSettings(temperature)
    return build_unique_cells(parse_cells(chosen or {}, spec, wanted, list_conf_dirs()), sampling)


@pytest.mark.parametrize("name", [*TREES, "medusa", "redrafter"])
def test_whole_path_verification_goes_with_every_tree(name):
    for temperature in (0.0, 1.0):
        other = {"decoder": name, "verifier": "traversal"}
        _, plain, other = cells_of(name, other, temperature=temperature)
        assert other.name == f"{name}_traversal"
        mine, its = other.config, plain.config
        assert (mine.spec, mine.drafts, mine.heads) == (its.spec, its.drafts, its.heads)
        assert other.settings["verifier"] == {"rule": "traversal"}
        assert other.settings["tree"] == plain.settings["tree"]


def test_a_drafter_or_rule_that_is_a_name_stands_in_place_of_the_decoders_own():
    wanted = {"decoder": "rsd_c", "drafter": "eagle3", "spec": "2-1", "verifier": "traversal"}
    (_, cell) = cells_of(wanted)
    assert cell.title == "eagle3_rsd_c_traversal 2-1"
    assert (cell.config.drafts, cell.config.heads) == (0, "eagle3")
    assert cell.settings["drafter"] == {"kind": "eagle3"}
    assert (
        list_recipe_cells("eagle=rules")[0] == "eagle3_sd:5"
    )  # the report looks for that very name
    chosen = dict(compose_config(["decoder=rsd_s", "decoder.verifier=traversal"]).decoder)
    assert cells_of(chosen=chosen, spec="4x3")[1].title == "rsd_s_traversal 4x3"


def test_cells_of_one_decoder_that_differ_in_a_setting_have_names_of_their_own():
    typical, lookup = {"decoder": "medusa_typical"}, {"decoder": "suffix_lookup"}
    cells = cells_of(
        *("medusa_typical", "medusa_typical epsilon=0.2", "opt_tree gain=null:3x2@4"),
        typical | {"verifier": {"epsilon": 0.2}},  # the second one again
        *(lookup | {"drafter": {"share": 0.5}}, {"decoder": "rsd_s", "tree": {"width": 2}}),
        *(typical | {"verifier": {"delta": 0.1}, "name": "mine"}, "sd drafter.kind=eagle3"),
    )
    assert [cell.name for cell in cells[1:]] == [
        *("medusa_typical", "medusa_typical epsilon=0.2", "opt_tree gain=null"),
        *("suffix_lookup share=0.5", "rsd_s", "mine", "sd kind=eagle3"),
    ]
    assert cells[2].settings["name"] == "medusa_typical"  # and so the run id is what it was
    chosen = dict(compose_config(["decoder=medusa_typical", "decoder.verifier.delta=0.1"]).decoder)
    assert cells_of(chosen=chosen)[1].name == "medusa_typical delta=0.1"
    assert get_decoder_style("medusa_typical delta=0.1").title == "Medusa, typical delta=0.1"


GRID = {"decoder": "mcsd_wor", "factors": [1, 2], "most": 2, "depths": [1, 2], "order": "any"}


def test_a_grid_holds_every_tree_with_at_most_so_many_paths():
    assert list_trees([1, 2], 2, [1, 2], "any") == [(1,), (2,), (1, 1), (1, 2), (2, 1)]
    # MCSD's rule leaves out trees that branch more further down.
    assert list_trees([1, 2], 2, [1, 2], "non_increasing") == [(1,), (2,), (1, 1), (2, 1)]
    trees = ["1", "2", "1-1", "1-2", "2-1"]
    assert expand_grid({"grid": GRID}) == [f"mcsd_wor:{tree}" for tree in trees]
    assert expand_grid({"decoder": "sd"}) == [{"decoder": "sd"}]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ({"decoder": "rsd_s", "verifier": "k_seq"}, "'k_seq' is exact only"),
        ({"grid": GRID | {"factors": [0, 1]}}, r"grid.factors\[0\] must be .* got 0"),
        ({"grid": GRID | {"depths": []}}, r"grid.depths must be"),
        ({"grid": GRID | {"most": "many"}}, "grid.most must be .* got 'many'"),
        ({"grid": GRID | {"order": "falling"}}, "any, non_increasing, got 'falling'"),
        ({"grid": GRID | {"colour": 1}}, "unknown setting grid.colour; grid has decoder, depths"),
    ],
)
def test_a_cell_or_grid_that_cannot_be_is_named(cell, message):
    with pytest.raises(ValueError, match=message):
        cells_of(cell)


def said(folder, *words):
    status, out, error = warm.run("spec_bench", *words, folder=folder)
    assert status == 0, error
    return out


def listed(*words):
    return [*parse_request(compose_config(words)).cells]


@pytest.mark.parametrize(
    ("group", "size", "number", "least"),
    [
        *(("budget", "nodes", nodes, 8) for nodes in (6, 10, 14, 21, 30)),
        *(("length", "depth", depth, 1) for depth in (2, 3, 4, 5)),
    ],
)
def test_every_tree_of_a_budget_or_length_has_just_that_size(group, size, number, least):
    cells = yaml.safe_load((get_conf_dir() / "tree_lists.yaml").read_text())[group][number]
    assert len(set(cells)) == len(cells) >= least
    assert {getattr(parse_tree_spec(cell.partition(":")[2]), size) for cell in cells} == {number}


def test_a_list_of_trees_is_named_by_its_number_or_in_a_folder_of_ones_own(tmp_path):
    six = listed("budget=6")
    assert six == listed("budget='6'") == listed('budget=["6"]') != listed("length=3")
    (tmp_path / "tree_lists.yaml").write_text("budget: {mine: [sd:9], 6: [sd:6]}")
    found = read_chosen_tree_lists(
        {"budget": ["mine", 6], "length": None}, [get_conf_dir(), tmp_path]
    )
    assert found == {"budget mine": ["sd:9"], "budget 6": six}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("budget=[6,7]", "one of 6, 10, 14, 21, 30; other trees are named by cells=[sd:7,rsd_c:2-"),
        ("length=6", "length must be one of 2, 3, 4, 5, got 6"),
        ("budget=-3", "got -3"),
        ("budget=2.5", "got 2.5"),
        ("budget=[null,6]", "got None"),
    ],
)
def test_a_budget_that_there_is_not_is_refused_by_name(word, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        listed(word)


def test_budget_and_length_add_to_the_cells_that_are_asked_for_each_cell_once(tmp_path):
    plan = said(tmp_path, "budget=6", "length=2", "cells=[mcsd:3-2]", "plan=true", "prompts=1")
    specs = set(re.findall(r"^([a-z_]+) +(\S+) *$", plan.partition("\ndecoder")[2], re.MULTILINE))
    assert {("mcsd", "3-2"), ("sd", "2"), ("sd", "6"), ("spectr", "3x2"), ("ar", "-")} <= specs
    assert f"{len(specs)} cells" in plan
    assert len(specs) == 14  # the baseline, 1, 8 and 8, four of which are both
    assert listed("budget=[14,6]") == [*listed("budget=14"), *listed("budget=6")]


def test_a_group_set_to_the_null_that_is_its_default_takes_back_a_recipes():
    for group in ("budget", "length", "today", "experiment"):
        assert listed(f"{group}=null") == listed()
    assert len(listed("rsd=exp2", "budget=null")) < len(listed("rsd=exp2"))


# Two cells as by default, eight with budget=6.
@pytest.mark.parametrize(("swept", "cells"), [("budget=6,14", 17), ("budget=null,6", 10)])
def test_a_sweep_over_budgets_is_a_job_for_each(tmp_path, swept, cells):
    assert f"{cells} cells" in said(tmp_path, "-m", swept, "plan=true", "prompts=1")


MODELS = (
    *("pair.target=random:llama_tiny", "pair.draft=random:llama_tiny"),
    *("sink=quiet", "engine.threads=1"),
)


def stating(*more, task=("task=random", "task.prompt_tokens=8")):
    return compose_config([*MODELS, *task, *more])


def acceptances(*more):
    cells = build_unpinned_settings(stating(*more)).cells
    return [cell.settings["verifier"].get("acceptance") for cell in cells]


@pytest.fixture
def run(tmp_path):
    return lambda *more, **task: run_config(
        stating(f"results={tmp_path / 'results'}", *more, **task)
    )


def test_measured_acceptance_is_the_stated_one_and_the_rows_say_simulated(run, tmp_path):
    cells = "cells=[sd:3,spectr:2x2,rsd_c:2-1,rsd_s:2x2]"
    run("simulate=0.8", "prompts=4", cells, "generation.max_new_tokens=64")
    baseline, *rows = rows_of(tmp_path / "results")
    assert (baseline["lossless"], baseline["simulated_acceptance"]) == ("exact", "")
    assert float(baseline["block_efficiency"]) == 1
    assert float(baseline["perplexity"]) > 1
    for row in rows:
        assert row["pair"] == "random:llama_tiny+random:llama_tiny"
        assert (row["lossless"], row["simulated_acceptance"]) == ("simulated", "0.8")
        assert row["status"] == "complete"
        assert (row["perplexity"], row["perplexity_by_prompt"]) == ("", "")
        assert "perplexity: the text is of an acceptance that was given" in row["reason"]
        # About 200 trials a row: more than three standard deviations.
        assert float(row["acceptance_rate"]) == pytest.approx(0.8, abs=0.09)


@pytest.mark.parametrize(("stated", "accepted"), [("[1.0,0.0,0.5]", 1), ("1", 3), ("0.0", 0)])
def test_each_depth_has_its_own_acceptance(run, stated, accepted):
    _, result = run(f"simulate={stated}", "prompts=1", "decoder=rsd_s", "spec=3x3")
    assert result.metrics["block_efficiency"] == accepted + 1


def test_the_acceptance_is_part_of_the_run_id_of_speculative_cells_only():
    stated = ("null", "0.7", "0.8", "[0.8,0.7,0.6]")
    jobs = [build_unpinned_settings(stating(f"simulate={each}")) for each in stated]
    baselines, cells = zip(*(map(job.compute_run_id, job.cells) for job in jobs), strict=True)
    assert len(set(baselines)) == 1
    assert len(set(cells)) == 4


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("simulate=1.2", "a probability, a list of one per depth.* got 1.2"),
        ("simulate=[0.8,hot,0.2]", "hot"),
        ("simulate=[0.8,0.7]", r"\[0.8, 0.7\] has 2 values, the tree has depth 3"),
        ("simulate={table: rsd/1}", "a probability, .*printed, a results.csv or null, got .*rsd/1"),
        ("simulate=none.csv", "none.csv"),
        ("simulate=printed", "random:llama_tiny.*pair.paper"),
    ],
)
def test_a_statement_that_cannot_be_is_one_line_that_names_it(wrong, named):
    with one_line(named):
        acceptances(wrong)


AS_PRINTED = (
    *("simulate=printed", "pair.paper={target: Llama-2-7B, draft: Llama-2-115M}"),
    *("task.source.kind=random", "+task.prompt_tokens=8", "generation.max_new_tokens=8"),
)
XSUM = ("task=xsum",)


def check_efficiency(cell, tau):
    """The cell accepts so that its tree has a block efficiency."""
    acceptance = cell.settings["verifier"]["acceptance"]
    levels = range(cell.config.tree.shape.depth + 1)
    assert sum(acceptance**level for level in levels) == pytest.approx(tau, abs=1e-9)


def test_each_tree_accepts_as_the_papers_block_efficiency_asks_for():
    cells = "cells=[sd:2,rsd_s:12x5,rsd_c:12-1-1-1-1,sd:9]"
    job = build_unpinned_settings(stating(cells, *AS_PRINTED, task=XSUM))
    printed = {"sd 2": 2.166, "rsd_s 12x5": 4.073, "rsd_c 12-1-1-1-1": 3.249}  # Table 1
    assert [cell.title for cell in job.cells] == ["ar -", *printed]
    for cell, tau in zip(job.cells[1:], printed.values(), strict=True):
        check_efficiency(cell, tau)
    (reason,) = job.left_out_reasons
    assert "sd 9" in reason and "simulate=printed" in reason
    with one_line(naming("sd 9", "xsum", "0.3")):
        build_unpinned_settings(stating("cells=[sd:9]", *AS_PRINTED, task=XSUM))


def test_random_weights_of_published_sizes_have_that_pairs_printed_numbers():
    pair = PairSettings("random:llama2_7b", "random:llama_160m")
    found = read_block_efficiencies(PRINTED_SOURCE, pair, "wmt18_deen", 0.3)
    assert found["sd", "2"] == 1.673  # Table 2


def test_each_tree_accepts_as_a_results_file_has_it_of_this_task_and_temperature(tmp_path):
    file = tmp_path / "results.csv"
    head = "decoder,spec,task,temperature,block_efficiency\n"
    rows = "sd,3,random,1.0,2.5\nsd,3,random,0.0,3.5\nsd,3,xsum,1.0,3.5\nsd,4,random,1.0,\n"
    file.write_text(f"{head}{rows}dyspec,@4,random,1.0,2.2\n")
    given = ("cells=[sd:3,sd:4,prompt_lookup:1x3,'dyspec:@4']", f"simulate={file}")
    job = build_unpinned_settings(stating(*given))
    assert [cell.title for cell in job.cells] == ["ar -", "sd 3", "dyspec @4"]
    check_efficiency(job.cells[1], 2.5)
    check_efficiency(job.cells[2], 2.2)  # whose shorthand names no depth
    assert len(job.left_out_reasons) == 2


def test_a_papers_table_has_rates_of_random_weights_beside_the_printed_ones(run, tmp_path):
    run("name=rsd-exp1", "cells=[sd:2]", "prompts=1", *AS_PRINTED, task=XSUM)
    pair = "random:llama_tiny+random:llama_tiny"
    shown = ("table", "rsd/1", "--results", tmp_path / "results", "--pair", pair)
    status, text, error = warm.run("spec_bench", *map(str, shown), folder=tmp_path)
    assert status == 0, error
    head, line = (
        next(line.strip("|").split("|") for line in text.splitlines() if word in line)
        for word in ("| decoder |", "| 2 (simulated) |")
    )
    values = dict(zip(map(str.strip, head), map(str.strip, line), strict=True))
    printed = [values[f"{name}, paper"] for name in ("block efficiency", "token rate (1/s)")]
    assert (printed, values["speed-up over AR, paper"]) == (["2.166", "51.515"], "1.38")
    for name in ("token rate (1/s)", "speed-up over AR"):
        assert float(values[f"{name}, ours"].split()[0]) > 0


def test_a_decoder_may_state_its_acceptance_itself():
    cell = "{decoder: rsd_c, spec: 2-2, verifier: {rule: simulated, acceptance: 0.4}}"
    with pytest.raises(ValueError, match=naming("verifier.replacement")):
        acceptances(f"cells=[{cell}]")
    fresh = ["~decoder.verifier.replacement", "decoder.verifier.rule=simulated"]
    fresh.append("+decoder.verifier.acceptance=0.4")
    assert acceptances(*fresh) == [None, 0.4]
    with pytest.raises(ValueError, match=naming("simulate", "null")):
        acceptances(*fresh, "simulate=0.5")


def test_a_task_of_texts_needs_a_tokenizer(tmp_path):
    config = stating(f"results={tmp_path}", "prompts=1", task=("task=xsum",))
    with pytest.raises(ValueError, match=naming("task=random")):
        run_config(config)
    assert not list(tmp_path.glob("*/results.csv"))


PAIR = Pair("mine", "a/target", ("a/draft",), (), (None, None))
FIT = TreeFit(
    **{"pair": "mine", "target": "a/target", "draft": "a/draft", "revisions": ("cafe", "")},
    **{"task": "dolly", "sampling": SamplingSettings(top_p=0.95)},
    **{"prompts": 1, "iterations": 10, "accepted": (0.8, 0.1)},
)
SAMPLING = SamplingSettings(top_p=0.95)


def sequoia(total):
    decoder = load_decoder_settings(list_conf_dirs(), "sequoia")
    return Cell.from_mapping(
        {**decoder, "tree": {"policy": "fitted_list", "total": total}}, SAMPLING
    )


def test_the_tree_follows_from_the_acceptances_of_the_fit(tmp_path):
    FIT.write(tmp_path / "trees")
    trees = FittedTrees(PAIR, "dolly", SAMPLING, tmp_path)
    # 0.8, 0.64, 0.512, 0.4096; a second child below the root is worth 0.1 only.
    assert trees.fill_in_tree(sequoia(3)).settings["tree"]["nodes"] == [[0], [0, 0], [0, 0, 0]]
    deep = trees.fill_in_tree(sequoia(14)).settings["tree"]["nodes"]
    assert (len(deep), max(map(len, deep)), [1] in deep) == (14, 11, True)


@pytest.mark.parametrize(
    "other",
    [
        {"pair": replace(PAIR, target="another")},
        {"pair": replace(PAIR, drafts=("another",))},
        {"pair": replace(PAIR, revisions=("f00", None))},
        {"task": "xsum"},
        {"sampling": SamplingSettings(0.3, top_p=0.95)},
        {"sampling": SamplingSettings()},
    ],
)
def test_a_fit_is_for_its_models_task_and_sampling_alone(other, tmp_path):
    FIT.write(tmp_path / "trees")
    told = {"pair": PAIR, "task": "dolly", "sampling": SAMPLING, "results": tmp_path}
    with pytest.raises(ValueError, match=naming("sequoia @3", "spec-bench fit ", "pair.target=")):
        FittedTrees(**{**told, **other}).fill_in_tree(sequoia(3))


def test_another_sampling_is_refused_with_the_command_that_fits(monkeypatch, capsys, tmp_path):
    words = ["generation.temperature=0.7", f"results={tmp_path}"]
    assert main(monkeypatch, *words, "decoder=sequoia", "task=dolly") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "spec-bench fit pair=embedded task=dolly generation.temperature=0.7" in said
    told = [*words, "cells=[sd:2,sequoia:@14]", "plan=true", "hydra/job_logging=none"]
    assert main(monkeypatch, *told) == 0  # the others run, as without a pair's heads
    assert "sequoia" not in capsys.readouterr().out
    assert main(monkeypatch, "decoder=sequoia", "spec=eagle_25") == 2
    assert "'eagle_25'" in capsys.readouterr().err  # another decoder's tree
    assert main(monkeypatch, "cells=[{decoder: sequoia, drafter: eagle3}]") == 2
    assert "fitted_list" in capsys.readouterr().err
    pair = load_pair(target="embedded:target", draft="embedded:draft")
    with pytest.raises(ValueError, match="spec-bench fit "):
        pair.decode("Summary:", "sequoia:@4")


def test_what_the_command_measures_the_next_job_decodes_with(run_job, family, tmp_path, capsys):
    results = tmp_path / "results"
    told = overrides(family, results, "prompts=2", "width=3", "nodes=4")
    assert fit_tree([*told, "hydra/job_logging=none"]) == 0
    assert "sequoia:@4" in capsys.readouterr().out
    (path,) = (results / "trees").glob("*.yaml")
    fit = read_tree_fit(path)
    assert (fit.task, fit.prompts, len(fit.accepted)) == ("xsum", 2, 3)
    assert fit.iterations >= 2 and 0 <= sum(fit.accepted) <= 1
    run_job("cells=[sequoia:@4]", "prompts=2")
    (row,) = (row for row in rows_of(results) if row["decoder"] == "sequoia")
    assert (row["spec"], row["status"], float(row["nodes_per_call"])) == ("@4", "complete", 4.0)
    config = cell_folder.read_cell_json(results / "runs" / row["run_id"])["settings"]
    assert len(config["decoder"]["tree"]["nodes"]) == 4  # so that a new fit is another cell


@pytest.mark.parametrize("wrong", ["width=wide", "nodes=0", "nodes="])
def test_the_commands_own_numbers_are_checked(wrong, capsys):
    assert fit_tree([wrong]) == 2
    assert capsys.readouterr().err.count("\n") == 1


SMALL = {
    "dynamic": "opt_tree:2x2@3 dyspec:2x2@3 sd_dynamic:3 traversal_paths:2x2 lookup_or_draft:3",
    "rules": "block:2 traversal:2-1 optimal:2x2 top_and_sample:2-1",
    "eagle": "eagle:chain_5 eagle2:2x2@3 eagle3:2x2@3 eagle_rsd_s:2x2 eagle_traversal:chain_5",
}
SHORT = ("warmup=0", "generation.max_new_tokens=6", "prompts=3")


@pytest.mark.parametrize("kind", SMALL)
def test_a_job_of_them_resumes_behind_its_last_line_and_knows_no_batches(
    kind, family, run_job, tmp_path
):
    cells, results = SMALL[kind].split(), tmp_path / "results"
    asked = (f"cells=[{','.join(cells)}]", *eagle_heads(family), *SHORT)
    whole = run_job(*asked)
    names = ["ar", *(cell.partition(":")[0] for cell in cells)]
    assert [(r.facts.decoder, r.status) for r in whole] == [(name, "complete") for name in names]
    before = [tokens_of(results, cell.run_id) for cell in whole]
    for cell in whole:
        cut(results, cell.run_id, 2)
    assert [cell.run_id for cell in run_job(*asked)] == [cell.run_id for cell in whole]
    assert [tokens_of(results, cell.run_id) for cell in whole] == before
    batched = run_job(*asked, "engine.batch_size=3", results=tmp_path / "batched")
    assert [tokens_of(tmp_path / "batched", cell.run_id) for cell in batched] == before


@pytest.mark.slow
def test_trees_that_vary_have_no_acceptance_rate_and_say_why(run_job):
    for row in run_job("cells=[sd:2,sd_dynamic:2,opt_tree:2x2@3]", "prompts=1", "warmup=0")[1:]:
        known = row.facts.decoder == "sd"
        told = [row.metrics[f"acceptance_rate{end}"] for end in ("", "_low", "_by_depth")]
        assert (told[0] is not None and told[2] is not None) if known else told == [None] * 3
        assert ("acceptance_rate: trees have another form" in row.reason) != known


def test_a_colon_without_a_tree_is_refused():
    with pytest.raises(ValueError, match="'sd:' names no tree"):
        parse_cell("sd:", list_conf_dirs())
