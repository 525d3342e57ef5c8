"""The papers' tables: measured numbers beside the printed ones, and what a reader is told."""

import csv
import io
import json
import re
import shutil

import pytest

from spec_bench.report.data.differences import describe_differences_from_papers
from spec_bench.report.data.rows import read_rows
from spec_bench.report.papers.items import list_recipe_cells
from spec_bench.report.papers.pairs import (
    find_pair_config,
    format_drafter_size,
    format_parameter_count,
    read_pair_configs,
)
from spec_bench.report.papers.paper import get_table, load_paper
from spec_bench.report.tables.build import build_table, build_tables_by_setting
from spec_bench.report.tables.measured import MeasuredRows
from spec_bench.report.tables.printed import RequestedCell, lay_out_printed_table
from spec_bench.report.tables.render import (
    format_table_latex,
    format_table_markdown,
    format_tables_csv,
)
from spec_bench.system.files import get_data_folder
from spec_bench.vocabulary.published import pivot_numbers
from tests.report.rows import EMBEDDED, MT_BENCH, frame, record, recorded, row, write
from tests.report.shown import line_of, measured_places, table
from tests.said import naming


def sd(spec="2", **values):
    return row("sd", spec, **values)


def noted(grid, *texts):
    return all(any(text in note for note in grid.notes) for text in texts)


def test_paper_ours_interval_and_difference_stand_side_by_side(tmp_path):
    write(tmp_path, "rsd-exp1", sd(block_efficiency=(2.266, 2.2, 2.3), rouge2=0.153))
    line = line_of(table("rsd/1", tmp_path), "2", "SD", "2")
    assert line.startswith("| 2 | SD | 2 | 2.166 | 2.266 [2.200, 2.300] | +0.100 |")
    assert line.endswith("| 0.143 | 0.153 | +0.010 |")


PLAIN = row("ar", **EMBEDDED, token_rate=80.0, speedup=1.0)
CHAIN = row("sd", "2", **EMBEDDED, block_efficiency=2.5, token_rate=120.0, speedup=(1.5, 1.4, 1.6))


def test_of_another_pair_nothing_is_subtracted_and_speed_ups_stand_side_by_side(tmp_path):
    grid = table("rsd/1", write(tmp_path, "rsd-exp1", PLAIN, CHAIN), "embedded")
    assert "difference" not in format_table_markdown(grid).partition("\n- ")[0]
    assert "| speed-up over AR, paper | speed-up over AR, ours |" in format_table_markdown(grid)
    line = line_of(grid, "2", "SD", "2")
    assert "| 2.166 | 2.500 |" in line
    assert f"| {51.515 / 37.269:.2f} | 1.50 [1.40, 1.60] |" in line
    assert noted(grid, "nothing is subtracted")
    assert "speed-up over AR" not in format_table_markdown(table("rsd/1", tmp_path))


def test_no_printed_number_is_bold_in_a_block_with_a_lost_one():
    for number, lost in ((9, 5), (7, 5), (29, 30)):
        places = lay_out_printed_table(f"rsd/{number}", None).places
        bold = {place["labels"][0] for place in places if place["best"]}
        assert str(lost) not in bold and len(bold) >= 3


STALLED = "stalled: 1 of 12 windows, median says 1.27"


def test_a_stalled_row_is_marked_and_neither_best_nor_the_fastest_tree(tmp_path):
    stalled = {"speedup": (6.52, 6.4, 6.6), "reason": f"speedup: {STALLED}"}
    cells = [
        row("ar", speedup=1.0),
        row("sd", "2", block_efficiency=(2.2, 2.1, 2.3), token_rate=(9.0, 8.9, 9.1), **stalled),
        row("spectr", "2x2", token_rate=(5.0, 4.9, 5.1)),
        row("mcsd_wor", "4-2-1", task="alpaca", **stalled),
        row("mcsd_wor", "2-2-1", task="alpaca", speedup=(1.5, 1.4, 1.6)),
    ]
    write(tmp_path, "rsd-exp1", *cells)
    grid = table("rsd/1", tmp_path)
    assert noted(grid, f"Ours, sd 2: {STALLED}.")
    line = line_of(grid, "2", "SD", "2")
    assert "| 9.00 (stalled) [8.90, 9.10] |" in line and "| 2.200 [2.100, 2.300] |" in line
    asked = RequestedCell("llama2_7b", "alpaca", "mcsd_wor", "", 0.3, pick="fastest")
    assert MeasuredRows.read_below(tmp_path).find_row(asked)["spec"] == "2-2-1"


@pytest.mark.parametrize("taus", [{8: 2.9, 30: 2.2}, {30: 2.2, 8: 2.9}])
def test_of_a_cell_measured_twice_a_table_shows_the_larger_run(taus, tmp_path):
    rows = (sd(prompts=n, block_efficiency=tau, run_id=f"run{n}") for n, tau in taus.items())
    write(tmp_path, "rsd-exp1", *rows)
    line = line_of(table("rsd/1", tmp_path), "2", "SD", "2")
    assert "| 2.166 | 2.200 |" in line and "2.900" not in line


OURS_ALONE = {"pair": "mine", "target": "a/b", "draft": "a/c"}  # in no config
MODELS = "pair.target=a/b pair.draft=a/c pair.name=mine"


@pytest.mark.parametrize(("device", "way", "own", "words"), [
    ("NVIDIA A100", "none", {}, "pair=llama2_7b engine=cuda engine.compile=none"),
    ("NVIDIA A100", "static", {}, "pair=llama2_7b engine=cuda"),
    ("cpu", "none", {}, "pair=llama2_7b"),
    ("NVIDIA A100", "static", OURS_ALONE, f"{MODELS} engine=cuda"),
    ("cpu", "static", OURS_ALONE, MODELS),
])  # fmt: skip
def test_what_is_missing_says_so_and_runs_where_the_rows_did(tmp_path, device, way, own, words):
    write(tmp_path, "rsd-exp1", sd(block_efficiency=2.2, device=device, compile=way, **own))
    grid = table("rsd/1", tmp_path, own.get("pair"))
    assert grid.commands == (f"spec-bench run rsd=exp1 {words} task=xsum",)
    assert "| SpecTr | 2x2 | 2.218 | not run |" in format_table_markdown(grid)


def test_a_failed_cell_says_why_and_prompts_without_room_are_counted_under_the_table(tmp_path):
    own = {"block_efficiency": 2.2, "prompts_skipped": 3, "prompts_truncated": 0}
    failed = sd(status="failed", reason="OutOfMemoryError: 80 GB (trace: runs/1)")
    write(tmp_path, "rsd-exp1", failed, row("ar", "-", **own), sd("3", **own))
    grid = table("rsd/1", tmp_path)
    assert "failed: OutOfMemoryError: 80 GB |" in format_table_markdown(grid) and grid.commands
    (note,) = (each for each in grid.notes if "too long" in each)
    assert "XSum on llama2_7b: 3 prompts left out" in note


def test_ours_stands_out_only_where_no_interval_overlaps_and_not_alone(tmp_path):
    chain = sd(block_efficiency=(2.0, 1.9, 2.1), mbsu=(1.9, 1.8, 2.0))
    beams = row("rsd_s", "3x2", block_efficiency=(2.4, 2.2, 2.6), mbsu=(2.1, 1.95, 2.2))
    write(tmp_path, "rsd-exp1", chain, beams)
    line = line_of(table("rsd/1", tmp_path), "", "RSD-S", "3x2")
    assert "| **2.400** [2.200, 2.600] |" in line and "| 2.100 [1.950, 2.200] |" in line
    write(tmp_path, "rsd-exp1", chain)
    assert "| 2.000 [1.900, 2.100] |" in format_table_markdown(table("rsd/1", tmp_path))


def test_a_note_says_what_speedups_are_over_transformers_own_faster_generate():
    generate = row("hf_generate", "-", lossless="unaudited", speedup=(1.25, 1.2, 1.3))
    (note,) = (
        n
        for n in describe_differences_from_papers([sd(), generate], ["speedup"])
        if "own generate" in n
    )
    assert "XSum" in note and "1.25 times" in note and "0.80 of" in note
    unsure = {**generate, "speedup_low": 0.99}
    for rows, shown in (([unsure], ["speedup"]), ([generate], ["mbsu"])):
        assert not any(
            "own generate" in each for each in describe_differences_from_papers(rows, shown)
        )


def test_rows_of_one_configuration_under_two_names_are_named_with_what_they_differ_by():
    both = [row("rsd_c", "2-1", speedup=1.5), row("mcsd_wor", "2-1", speedup=1.4)]
    notes = describe_differences_from_papers([*both, row("rsd_c", "2-2", speedup=1.0)], ["speedup"])
    (note,) = (note for note in notes if "one configuration" in note)
    assert "RSD-C 2-1" in note and "2-2" not in note and "7.1%" in note
    assert not any(
        "one configuration" in note for note in describe_differences_from_papers(both, ["mbsu"])
    )
    several = describe_differences_from_papers([both[0], {**both[1], "batch_size": 4}], ["speedup"])
    assert not any("one configuration" in note for note in several)


MARKS = {"simulated": "simulated", "approximate": "approximate", "exact_beam": "beam distribution"}


@pytest.mark.parametrize("lossless", MARKS)
def test_rows_that_are_not_exact_are_marked_and_never_best(tmp_path, lossless):
    beams = row("rsd_s", "3x2", block_efficiency=(3.0, 2.9, 3.1), lossless=lossless)
    write(tmp_path, "rsd-exp1", sd(block_efficiency=(2.0, 1.9, 2.1)), beams)
    grid, mark = table("rsd/1", tmp_path), MARKS[lossless]
    assert "| 3.000 [2.900, 3.100] |" in line_of(grid, "", "RSD-S", f"3x2 ({mark})")
    assert any(note.startswith(f"{mark}:") for note in grid.notes)
    assert f"({mark})" in format_table_latex(grid)
    lines = csv.DictReader(io.StringIO(format_tables_csv(grid)))
    found = {
        r["decoder"]: r["lossless"] for r in lines if r["tree"] in ("2", "3x2") and r["lossless"]
    }
    assert found == {"SD": "exact", "RSD-S": lossless}


def test_the_recipes_own_experiment_is_preferred_and_its_seeds_are_pooled(tmp_path):
    write(tmp_path, "quickstart", sd(block_efficiency=1.5))
    own = (sd(seed=3, block_efficiency=1.7), sd(seed=1, block_efficiency=1.6))
    write(tmp_path, "rsd-exp1", *own)
    assert "| 2 | SD | 2 | 2.166 | 1.650 |" in format_table_markdown(table("rsd/1", tmp_path))


def test_rows_that_were_sampled_otherwise_are_no_part_of_the_table(tmp_path):
    write(tmp_path, "rsd-exp1", sd(temperature=1.0, block_efficiency=1.5))
    write(tmp_path, "dsbd-one-cache", squad("ar", "-", top_k=0, top_p=1.0, exact_match=0.5))
    assert not table("rsd/1", tmp_path).is_measured and not table("dsbd/1", tmp_path).is_measured


def test_another_pair_is_named_and_takes_the_same_layout_where_it_is_asked_for(tmp_path):
    models = {"target": "embedded:target", "draft": "embedded:draft_distilled"}
    # A label made of model names is the pair with these models.
    named = sd(**models, pair="target+draft_distilled", block_efficiency=2.0)
    write(tmp_path / "few", "rsd-exp1", named)
    assert table("rsd/1", tmp_path, "embedded").is_measured
    write(tmp_path / "embedded", "rsd-exp1", sd(pair="embedded", block_efficiency=2.0))
    write(tmp_path, "runs", sd("3", pair="embedded", block_efficiency=9))
    assert len(MeasuredRows.read_below(tmp_path).rows) == 2  # two levels down, and no raw runs
    said = ("no cell of this table was run on llama2_7b", "add --pair embedded")
    assert noted(table("rsd/1", tmp_path), *said)
    grid = table("rsd/1", tmp_path, "embedded")
    assert "| 2 | SD | 2 | 2.166 | 2.000 |" in format_table_markdown(grid)
    assert noted(grid, "pair embedded, small models on invented text, not the paper's")
    assert grid.commands == ("spec-bench run rsd=exp1 pair=embedded task=xsum",)


MCSD = {"pair": "llama_33b_68m", "task": "alpaca", "temperature": 0.0}


def searched(spec, speedup, tau, decoder="mcsd_wor", **more):
    return row(decoder, spec, **MCSD, speedup=speedup, block_efficiency=tau, **more)


def test_mcsd_takes_its_fastest_tree_and_sd_at_the_same_depth(tmp_path):
    chains = (searched("1", 1.9, 1.5, "sd"), searched("2", 1.7, 1.8, "sd"))
    trees = (searched("4-1", 2.5, 2.1), searched("8-2-1", 2.2, 2.6))
    write(tmp_path, "mcsd-search", searched("-", 1.0, 1.0, "ar"), *chains, *trees)
    grid = table("mcsd/2", tmp_path)
    text = format_table_markdown(grid)
    assert "| SD (same γ) | 0 | 1x1x1x1x1 | 1x1 | 2.71 | 1.70 | -1.01 | 3.19 | 1.80 |" in text
    assert "| SD (best γ) | 0 | 1x1x1x1x1x1x1x1x1x1 | 1 | 2.89 | 1.90 |" in text
    assert "| MCSD | 0 | 4x2x2x1x1 | 4x1 | **3.06** | 2.50 |" in text
    assert noted(grid, "fastest of those measured (2 MCSD trees)")


@pytest.mark.parametrize("records", [False, True])
def test_a_difference_of_two_cells_is_paired_by_prompt_or_has_no_interval(records, tmp_path):
    pair = {**MCSD, "pair": "llama_13b_68m"}
    rates = {"1": (0.50, 0.30, 0.70), "4": (0.60, 0.40, 0.80)}
    cells = [row("mcsd_wor", spec, **pair, acceptance_rate=rate) for spec, rate in rates.items()]
    write(tmp_path, "mcsd-acceptance", *cells)
    file = tmp_path / "mcsd-acceptance" / "results.csv"
    accepted = {"1": [7, 3, 7, 3, 7, 3, 7, 3], "4": [8, 4, 9, 4, 8, 3, 9, 3]}
    for spec, counts in accepted.items() if records else ():
        steps = [[1] * count + [0] * (10 - count) for count in counts]
        record(file, f"mcsd_wor-{spec}", steps, depth=1)
    grid = table("mcsd/7", tmp_path)
    line = line_of(grid, "LLaMA-68M", "LLaMA-13B")
    if not records:
        assert "| 0.12 | 0.10 | -0.02 |" in line
        assert noted(grid, "no interval where the records by prompt")
        return
    found = re.search(r"\| 0\.12 \| (0\.\d\d) \[(0\.\d\d), (0\.\d\d)\]", line).groups()
    value, low, high = map(float, found)
    assert low <= value <= high
    assert high - low < 0.2  # as if they were independent: 0.57
    assert noted(grid, "paired by prompt")


ALPACA = {"pair": "vicuna_13b_68m", "task": "alpaca", "temperature": 1.0}


def test_the_ablation_rather_shows_the_tree_that_the_paper_found_best(tmp_path):
    other = [row(each, "4-2-1", **ALPACA, speedup=1.1) for each in ("mcsd_wor", "mcsd", "mcns")]
    write(tmp_path, "mcsd-ablation", *other, row("mcsd_wor", "16-1", **ALPACA, speedup=1.6))
    grid = table("mcsd/4", tmp_path)
    assert noted(grid, "vicuna_13b_68m 16x1.")
    shown = [place["value"] for place in measured_places(grid)]
    assert shown[0] == 1.6 and 1.1 not in shown


def test_answers_that_end_at_a_newline_and_those_that_run_on_are_two_tables(tmp_path):
    own = {**ALPACA, "task": "wmt14_ende", "prompts_digest": "1"}
    rates = (("eos+newline", 0.25), ("eos", 0.24))
    cells = [row("mcsd_wor", "1", **own, stop_rule=r, acceptance_rate=rate) for r, rate in rates]
    write(tmp_path, "mcsd-acceptance", *cells)
    one, other = build_tables_by_setting(get_table("mcsd/1"), MeasuredRows.read_below(tmp_path))
    assert "stop rule eos+newline" in one.title and "(stop rule eos)" in other.title
    assert noted(one, "WMT14 En-De: an answer ends at eos or newline")
    assert not noted(other, "task.stop=[]")


SAMPLED = {"temperature": 1.0, "top_k": 10, "top_p": 0.8, "pair": "llama2_13b_68m"}
NO_METER = "energy_j_per_token: no meter"


def squad(decoder, spec, **values):
    return row(decoder, spec, **{**SAMPLED, "task": "squad", "reason": NO_METER, **values})


def test_scores_are_percentages_and_energy_without_a_meter_says_so(tmp_path):
    score = {"exact_match": (0.58, 0.48, 0.68), "perplexity": (1.5, 1.25, 2.0)}
    metered = squad("sd", "3", reason="", energy_j_per_token=(8.0, 7.5, 8.5))
    write(tmp_path, "dsbd-one-cache", squad("ar", "-", **score), metered)
    grid = table("dsbd/1", tmp_path)
    line = line_of(grid, "SQuAD", "Llama-2-13B", "multinomial")
    assert "| - | 74 | 58.0 [48.0, 68.0] | -16.0 | 1.82 | 1.500 [1.250, 2.000] | -0.320 |" in line
    assert "| 12.36 | no meter |" in line
    sd_line = line_of(grid, "", "Llama-2-13B", "SD")
    assert "| 8.34 | 8.000 [7.500, 8.500] | -0.340 |" in sd_line
    assert noted(grid, "energy=nvml", "neither the depth of SD, the tree of SpecInfer, nor W_S")


def test_the_recipes_setting_is_shown_and_else_the_first_one_measured(tmp_path):
    other = squad("dsbd_one_cache", "6x2@0.7", token_rate=20.0)
    own = squad("dsbd_one_cache", "4x3@0.9", token_rate=25.0)
    cells = {"| 6x2@0.7 |": [other], "| 4x3@0.9 |": [other, own]}
    for number, (text, rows) in enumerate(cells.items()):
        write(tmp_path / str(number), "dsbd-one-cache", *rows)
        shown = table("dsbd/1", tmp_path / str(number))
        assert text in line_of(shown, "", "Llama-2-13B", "DSBD (beam distribution)")


RULE = "exact (paper: rejection sampling, ours: exact match)"


def heads(decoder, spec, temperature, **values):
    same = {"pair": "vicuna_7b", "task": "mt_bench", "temperature": temperature}
    return row(decoder, spec, **{**same, **values})


def test_another_tree_has_a_line_of_its_own_and_none_where_it_is_all_there_is(tmp_path):
    small = heads("medusa", "embedded_16", 0.0, pair="embedded", token_rate=50.0)
    large = heads("medusa", "mc_sim_7b_63", 0.0, pair="embedded", token_rate=40.0)
    for cells in ([small], [large, small]):
        write(tmp_path, "redrafter-decoding", *reversed(cells))
        places = measured_places(table("redrafter/1", tmp_path, "embedded"))
        own = [place for place in places if place["labels"][:2] == ("embedded", "Medusa")]
        assert [e["text"] for e in own if e["text"]] == [cell["spec"] for cell in cells]


def test_a_table_that_measures_speed_ups_shows_another_pairs_once(tmp_path):
    names = format_tables_csv(table("today/2", tmp_path, "embedded")).splitlines()[0].split(",")
    assert "0_speedup_paper" in names and len({*names}) == len(names)


def test_a_ratio_to_greedy_ar_is_paired_by_prompt_or_has_no_interval(tmp_path):
    warm = {"token_rate": (60.0, 54.0, 66.0), "speedup": (1.2, 1.1, 1.3)}
    rows = frame(
        heads("ar", "-", 0.0, token_rate=(40.0, 38.0, 42.0), speedup=(1.0, 1.0, 1.0)),
        heads("redrafter", "15x5", 0.9, **warm),
    )
    rows = recorded(tmp_path / "redrafter-temperatures" / "results.csv", rows)
    write(tmp_path, "redrafter-temperatures", *rows.to_dict("records"))
    line = line_of(table("redrafter/2", tmp_path), "", RULE, "0.9")
    # The records move by 1%, one up where the other goes down, far less than either interval.
    assert "| 15x5 | 3.43 ±0.05 | 1.50 [1.49, 1.52] | -1.93 | 1.20 [1.10, 1.30] |" in line
    shutil.rmtree(tmp_path / "runs")
    grid = table("redrafter/2", tmp_path)
    assert "| 3.43 ±0.05 | 1.50 | -1.93 | 1.20 [" in line_of(grid, "", RULE, "0.9")
    assert "| 1.00 | 1.00 | +0.00 | 1.00 |" in line_of(grid, "paper's", "greedy AR", "0")
    write(tmp_path, "redrafter-temperatures", heads("redrafter", "15x5", 0.9, **warm))
    alone = line_of(table("redrafter/2", tmp_path), "", RULE, "0.9")
    assert "| 3.43 ±0.05 | not run |" in alone


def test_a_drafters_size_is_a_share_of_a_known_target_or_its_trainings(tmp_path):
    (tmp_path / "training.json").write_text(json.dumps({"parameters": 250_000_000}))
    sizes = {
        "0.67B": {"pair": "vicuna_7b", "parameter_ratio": 0.1, "draft": "x/y"},  # of 6,738,415,616
        "1.87M": {"pair": "embedded", "draft": "embedded:heads/medusa"},
        "0": {"decoder": "ar", "pair": "embedded"},
        None: {"pair": "embedded", "draft": "no/folder"},
        "0.25B": {"pair": "mine", "draft": str(tmp_path)},
    }
    for text, own in sizes.items():
        assert format_drafter_size({"decoder": "medusa", **own}) == text
    assert format_parameter_count(99_000) == "0.10M"
    assert [find_pair_config(f"Vicuna-{n}B", "") for n in (7, 13)] == ["vicuna_7b", "vicuna_13b"]


def test_the_commands_for_missing_cells_run_a_recipe_whose_rows_fill_them(tmp_path):
    (command,) = table("today/1", tmp_path).commands
    assert command.split()[1:4] == ["run", "today=printed", "pair=qwen3_8b"]
    own = {"pair": "qwen3_8b", "target": "Qwen/Qwen3-8B", "task": "mt_bench", "temperature": 0.0}
    cells = (cell.split(":") for cell in (*list_recipe_cells("today=printed"), "ar:-"))
    write(tmp_path, "today-printed", *(row(*c, **own, speedup=1.5, token_rate=50.0) for c in cells))
    filled = table("today/1", tmp_path)
    assert not filled.commands and "not run" not in format_table_markdown(filled)


def test_the_commands_for_missing_cells_keep_the_prompts_and_limits_of_the_rows_beside(tmp_path):
    own = {"pair": "mine", "target": "a/b", "draft": "c/d", "task": "xsum", "temperature": 0.0}
    file = {"data_source": "local", "data_file": "x.jsonl", "prompts": 5, "max_new_tokens": 16.0}
    write(tmp_path, "rsd-exp1", row("sd", "3", **own, **file))
    (command,) = table("rsd/1", tmp_path, "mine").commands
    kept = {"prompts=5", "generation.max_new_tokens=16", "task.source.path=x.jsonl"}
    assert kept <= {*command.split()}
    usual = {"prompts": 100, "max_new_tokens": 128.0}
    write(tmp_path, "rsd-exp1", row("sd", "3", **own, **usual))
    (command,) = table("rsd/1", tmp_path, "mine").commands
    assert "prompts=" not in command and "max_new_tokens" not in command


def test_a_table_says_what_is_printed_of_plain_decoding_of_the_papers_own_pairs_alone(tmp_path):
    own = {"rouge2": (0.11, 0.10, 0.12), "delivered_tokens": 930.0, "prompt_length": 411.6}
    write(tmp_path, "rsd-exp1", row("ar", **own), sd(block_efficiency=2.2))
    grid = table("rsd/1", tmp_path)
    (note,) = (each for each in grid.notes if "printed is" in each)
    assert "is 0.110 [0.097, 0.123] (99%) on 30 prompts, answers of 31 tokens, prompts of 4" in note
    assert note.endswith("printed is 0.141: these are other prompts or another model.")
    write(tmp_path, "rsd-exp1", row("ar", **{**own, **EMBEDDED}), sd(**EMBEDDED))
    assert not noted(table("rsd/1", tmp_path, "embedded"), "printed is")


def test_a_printed_command_spreads_a_target_that_is_larger_than_one_of_the_papers_cards(tmp_path):
    spread = {}
    for name in ("mcsd/1", "mcsd/7"):
        for command in table(name, tmp_path).commands:
            (pairs,) = (word for word in command.split() if word.startswith("pair="))
            told = "pair.target_device_map=auto" in command
            spread |= dict.fromkeys(pairs.removeprefix("pair=").split(","), told)
    assert {"llama_33b_68m", "vicuna_33b_68m", "opt_30b", "llama_13b_68m", "opt_13b"} <= {*spread}
    assert all(told == ("33b" in pair or "30b" in pair) for pair, told in spread.items())


def test_rows_measured_here_do_not_carry_a_sources_name(tmp_path):
    one = row("dflash", "7", pair="embedded", task="mt_bench", temperature=0.0, token_rate=50.0)
    write(tmp_path, "today-printed", one)
    lines = format_table_markdown(table("today/1", tmp_path, "embedded")).splitlines()
    (ours,) = (line for line in lines if "| measured here | DFlash | 7 |" in line)
    assert " 50 " in ours
    assert sum("H100" in line for line in lines) == 3


NOTHING = MeasuredRows(read_rows([]))


def printed(name):
    return build_table(get_table(name), NOTHING)


@pytest.mark.parametrize("number", range(1, 55))
def test_every_rsd_table_prints_the_reference_value_for_value(number):
    rows = pivot_numbers(load_paper("rsd").get_numbers_or_places(number))
    grid = printed(f"rsd/{number}")
    lines = list(csv.DictReader(io.StringIO(format_tables_csv(grid))))
    assert len(lines) == len(rows) == (33 if number < 28 else 41)
    for line, cell in zip(lines, rows, strict=True):
        axis, _, spec, *numbers = line.values()
        assert (axis, spec) == (cell["axis_value"], cell["spec"])
        score = {"xsum": ["rouge2"], "wmt18_deen": ["bleu"], "dolly": []}[cell["task"]]
        metrics = ["block_efficiency", "mbsu", "token_rate", *score]
        assert numbers[::2] == [cell[metric] for metric in metrics]  # the others are states
        names = [column.name for column in grid.columns]
        assert names == [name if name not in score else "accuracy" for name in metrics]


CHAT = {"pair": "llama2_chat_7b", "draft": "double7/vicuna-160m",
        "target": "meta-llama/Llama-2-7b-chat-hf"}  # fmt: skip
SAMPLE = {"data_source": "embedded"}
OWN = {"data_source": "local", "data_file": "x.jsonl"}
OPT = {"pair": "opt_13b", "target": "facebook/opt-13b", "draft": "facebook/opt-125m"}
DOLLY = {"task": "dolly", "temperature": 1.0, "top_p": 0.95}  # asked in its template
HEADS = {**MT_BENCH, "speedup": 1.5}
OURS = {**HEADS, "draft": "embedded:heads/medusa"}
PUBLISHED = {**HEADS, "draft": "FasterDecoding/medusa-vicuna-7b-v1.3"}


def rsd(**values):
    return row("sd", "5", **{"block_efficiency": 2.2, "draft_calls": 5, **values})


def acceptance(**values):
    return [row("mcsd_wor", k, **{**MCSD, **values}, acceptance_rate=0.5) for k in "14"]


def trained_on(task, **values):
    own = {**EMBEDDED, **SAMPLE, "task": task, "temperature": 1.0, "block_efficiency": 2.0}
    top_p = {"top_p": 0.95} if task == "dolly" else {}
    return row("sd", "5", **{**own, **top_p, **values})


CASES = {
    "prefill": ("prefill left out", "rsd/1", rsd(token_rate=30.0), True),
    "no rates": ("prefill", "mcsd/7", acceptance(), False),
    # (5 x 115 / 6738 + 1) / (5 x 162.4 / 6738 + 1) = 0.969
    "our draft": ("162M parameters where the paper's draft has 115M: -3% at L = 5", "rsd/1",
                  rsd(mbsu=2.0), True),
    "embedded draft": ("stand-in's", "rsd/1", rsd(**EMBEDDED, mbsu=2.0), False),
    "the paper's draft": ("stand-in's", "rsd/1", rsd(**OPT, mbsu=2.0), False),
    "no MBSU": ("stand-in's", "mcsd/7", acceptance(pair="llama2_7b"), False),
    "prompts": ("Ours, XSum: prompts of x.jsonl, not the dataset's.", "rsd/7", rsd(**OWN), True),
    "completes": ("Ours, XSum: a text to complete", "rsd/7", rsd(**CHAT), True),
    "tuned": ("llama2_chat_7b was tuned", "rsd/7", rsd(**CHAT), True),
    "a base model": ("to complete", "rsd/1", rsd(), False),
    "in its template": ("to complete", "rsd/9", rsd(**CHAT, **DOLLY), False),
    "own answers": ("the target's own answers", "eagle/5", row("medusa", "chain_5", **OURS), True),
    "published heads": ("own answers", "eagle/5", row("medusa", "chain_5", **PUBLISHED), False),
    "no heads": ("own answers", "eagle/5", row("sd", "5", **HEADS), False),
    "all seen": ("all of the sample's prompts", "eagle/5", trained_on("mt_bench"), True),
    "some seen": ("52% of the sample's prompts", "rsd/9", trained_on("dolly"), True),
    "public data": ("sample's", "rsd/9", trained_on("dolly", data_source="hub"), False),
    "another pair": ("sample's", "rsd/9", trained_on("dolly", pair="vicuna_7b"), False),
    "not seen": ("sample's prompts", "rsd/1", rsd(**EMBEDDED, **SAMPLE), False),
}  # fmt: skip
EXPERIMENTS = {"rsd": "rsd-exp1", "mcsd": "mcsd-acceptance", "eagle": "eagle-heads"}


@pytest.mark.parametrize("case", CASES)
def test_a_difference_is_told_where_it_is_one(case, tmp_path):
    text, name, rows, told = CASES[case]
    rows = rows if isinstance(rows, list) else [rows]
    write(tmp_path, EXPERIMENTS[name.partition("/")[0]], *rows)
    grid = table(name, tmp_path, str(rows[0]["pair"]))
    assert grid.is_measured
    assert any(text in note for note in grid.notes) == told


@pytest.mark.parametrize(("picked", "other", "says"), [("1-1-1-1-1", "2-1", 1), ("4-1", "1-1", 0)])
def test_a_tree_that_was_picked_and_is_a_chain_is_called_one(picked, other, says, tmp_path):
    cells = (
        row("ar", "-", **MCSD, speedup=1.0),
        row("sd", "1", **MCSD, speedup=1.9),
        row("mcsd_wor", picked, **MCSD, speedup=2.5),
        row("mcsd_wor", other, **MCSD, speedup=2.2),
    )
    write(tmp_path, "mcsd-search", *cells)
    said = "\n".join(table("mcsd/2", tmp_path, MCSD["pair"]).notes)
    assert said.count("MCSD: 1x1x1x1x1, where picked, is a plain chain") == says
    assert said.count("plain chain") == says


def test_the_embedded_pair_states_what_its_model_card_counts():
    card = (get_data_folder("embedded") / "MODEL_CARD.md").read_text("utf-8")
    shown = card.partition("seen in training |")[2].partition("##")[0]
    shares = {task: int(n) / 100 for task, n in re.findall(r"\| (\w+) \|.*\| (\d+)% \|", shown)}
    assert len(shares) == 8
    stated = read_pair_configs()["embedded"].seen_in_training
    assert {task: share for task, share in shares.items() if share} == stated


def test_every_stand_in_states_what_it_stands_for():
    for name, config in read_pair_configs().items():
        assert bool(config.stand_in) == bool(config.paper_draft_parameters), name
        assert bool(config.paper_draft_parameters) <= bool(config.draft_parameters), name


def test_a_table_names_batch_and_length_and_the_limit_of_a_task_that_was_not_kept(tmp_path):
    write(tmp_path, "rsd-exp1", sd(block_efficiency=2.2, batch_size=4, max_new_tokens=16))
    grid = table("rsd/1", tmp_path)
    assert noted(grid, "temperature 0.3, batch size 4, max new tokens 16, seed 0")
    assert noted(grid, "Ours, XSum: at most 16 new tokens; the task's limit is 128.")


def test_rows_at_another_temperature_are_named_and_not_called_unmeasured(tmp_path):
    write(tmp_path, "rsd-exp1", sd(block_efficiency=2.2, temperature=1.0))
    assert noted(table("rsd/1", tmp_path), "Left out: 1 row at temperature 1.")
    write(tmp_path, "rsd-exp1", sd(temperature=1.0), row("spectr", "2x2", block_efficiency=2.0))
    assert "at temperature 1 alone" in line_of(table("rsd/1", tmp_path), "2", "SD", "2")


def test_rows_at_a_temperature_that_a_table_has_not_are_counted_under_it(tmp_path):
    own = {"block_efficiency": 2.0, "machine": "2 x Mine"}
    write(tmp_path, "rsd-exp1", sd(**own), *(sd(**own, temperature=t) for t in (1.0, 2.0)))
    grid = table("rsd/1", tmp_path)
    assert noted(grid, "machine 2 x Mine, temperature 0.3")
    assert noted(grid, "Left out: 1 row at temperature 1.")


def test_disturbed_rows_are_one_note_and_their_rates_are_not_set_against_the_papers(tmp_path):
    busy = {"reason": "speedup: disturbed: waited", "block_efficiency": 2.0, "token_rate": 9.0}
    write(tmp_path, "rsd-exp1", sd(**busy), row("spectr", "2x2", **busy))
    grid = table("rsd/1", tmp_path)
    assert [e for e in grid.notes if "rows are disturbed" in e] == [
        "Ours, 2 rows are disturbed, such as sd 2: disturbed: waited."
    ]
    lines = csv.DictReader(io.StringIO(format_tables_csv(grid)))
    line = next(e for e in lines if (e["decoder"], e["tree"]) == ("SD", "2"))
    differences = {name: text for name, text in line.items() if name.endswith("difference")}
    known = {name.removesuffix("_difference") for name, text in differences.items() if text}
    assert line["token_rate_ours"] == "9" and known == {"block_efficiency"}


def test_what_a_copy_of_the_embedded_pair_misses_is_run_on_the_embedded_prompts(tmp_path):
    write(tmp_path, "rsd-exp1", sd(block_efficiency=2.2, data_source="embedded", **OURS_ALONE))
    (command,) = table("rsd/1", tmp_path, "mine").commands
    assert "pair.name=mine task.source.kind=embedded" in command


def test_an_unknown_pair_says_how_a_pair_gets_its_name(tmp_path):
    with pytest.raises(ValueError, match=naming("'ours'", "pair.name=ours")):
        table("rsd/1", tmp_path, "ours")


def test_of_sampling_that_is_not_printed_any_row_is_taken_and_its_setting_is_told(tmp_path):
    asked = RequestedCell("llama2_7b", "xsum", "sd", "2", 0.3)
    for tops, shown in (((0.9,), 0.9), ((0.9, 1.0), 1.0)):
        cells = [sd(block_efficiency=2.2, top_p=top, run_id=f"run{top}") for top in tops]
        write(tmp_path, "rsd-exp1", *cells)
        measured = MeasuredRows.read_below(tmp_path)
        assert measured.find_row(asked)["top_p"] == shown
        assert (measured.find_row(asked._replace(top_p=0.9))["top_p"]) == 0.9
        assert measured.find_row(asked._replace(top_p=0.5)) is None
        grid = table("rsd/1", tmp_path)
        assert "| 2.166 | 2.200 |" in line_of(grid, "2", "SD", "2")
    write(tmp_path, "rsd-exp1", cells[0])
    assert noted(table("rsd/1", tmp_path), "top-p 0.9, batch size 1")


def test_in_csv_a_lost_number_is_empty_with_a_state_and_lossless_has_its_own_words(tmp_path):
    busy = {"reason": "speedup: disturbed: waited", "token_rate": 9.0}
    write(tmp_path, "rsd-exp1", row("ar", **busy), sd(block_efficiency=2.0, **busy))
    lines = list(
        csv.DictReader(io.StringIO(format_tables_csv(table("rsd/7", tmp_path, "llama2_7b"))))
    )
    lost = [each for each in lines if each["block_efficiency_paper_state"] == "lost"]
    assert lost and all(each["block_efficiency_paper"] == "" for each in lost)
    assert {each["lossless"] for each in lines} == {"exact", ""}


def test_the_command_for_missing_cells_keeps_where_the_rows_beside_had_their_prompts(tmp_path):
    own = {"device": "cpu", "compile": "none", "data_source": "embedded", "data_file": "xsum.jsonl"}
    write(tmp_path, "rsd-exp1", sd(block_efficiency=2.2, **own))
    (command,) = table("rsd/1", tmp_path).commands
    assert "pair=llama2_7b task.source.kind=embedded" in command and "engine=" not in command
