"""The page of a sweep: what to use comes first, figures hold what was measured, bytes repeat."""

import json
import re
import time
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from plotly import graph_objects
from plotly.offline import get_plotlyjs

from spec_bench.records import cell_folder
from spec_bench.report.cli.command_line import main
from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import read_rows
from spec_bench.report.sweep import FIGURES, build_page, drawn, packed, parts_of, swept_of
from spec_bench.system import files
from tests.report.rows import MT_BENCH, around, record, row, write

KINDS = ["qa", "math"] * 8
MORE = "about 20 prompts of this kind may decide"
TIMES = {"prefill_s": 1.0, "decode_s": 10.0, "draft_s": 2.0, "target_s": 5.0}
COUNTS = {"delivered_tokens": 1000, "nodes_per_call": 3.0, "target_calls": 1000}
BYTES = {"moved_bytes": 5e6, "bandwidth_bytes_per_s": 2e9}


def tabled(folder, kinds=KINDS):
    """``sd`` is twice as fast as plain decoding on math and slower on the others."""
    file = folder / "own" / files.RESULTS
    depths = json.dumps([0.5, None, 0.25])
    fast = {"speedup": (1.5, 1.4, 1.6), "mbsu": 1.8, "acceptance_rate_by_depth": depths}
    write(
        folder,
        "own",
        row("ar", "-", **MT_BENCH, run_id="ar", rouge2=0.5, **TIMES, **COUNTS, **BYTES),
        row("sd", "3", **MT_BENCH, run_id="sd", rouge2=(0.4, 0.3, 0.5), **fast, **TIMES, **COUNTS),
        row("rsd_s", "2x2", **MT_BENCH, run_id="no", status="failed", reason="ValueError: <b>"),
    )
    record(file, "ar", [[0] * 6] * 16, depth=0, rate=1.0, sitting="a", categories=kinds)
    record(file, "sd", [[3, 0, 0]] * 16, rate=2.0, sitting="a", categories=kinds)
    lines = files.run_folder(folder, "sd") / files.GENERATIONS
    found = []
    for each in cell_folder.read_lines(lines):
        slower = (2.2 if int(each.prompt_id) % 4 else 2.3) if each.category == "qa" else 1.0
        found.append(replace(each, decode_s=each.decode_s * slower))
    cell_folder.replace(lines, found)
    return file


@pytest.fixture
def table(tmp_path):
    return tabled(tmp_path)


def own(folder, *rows):
    cells = [row("sd", "3", **{**MT_BENCH, **each}) for each in rows]
    return write(folder, "own", *cells) / "own" / files.RESULTS


def the_part(table):
    records = Records(table)
    (part,) = parts_of(read_rows([table]), records)
    return part, records


def figures(table):
    return drawn(*the_part(table))[0]


def test_each_category_has_its_own_answer_and_plain_decoding_is_one(table):
    part, _ = the_part(table)
    found = [(a.kind, a.code, a.decoder) for a in part.answers]
    assert found == [("", "sd", "SD 3"), ("qa", "ar", "AR"), ("math", "sd", "SD 3")]
    assert part.answers[1].why.startswith("the fastest other one, SD 3, reaches 0.89× [")
    assert part.answers[2].value.startswith("2.00×")


def test_a_category_of_two_or_three_prompts_says_that_they_cannot_decide(tmp_path):
    part, _ = the_part(tabled(tmp_path, ["qa"] * 2 + ["math"] * 3 + ["code"] + ["prose"] * 10))
    slower, faster = (f"SD 3 looks {how}; {MORE}" for how in ("slower, 0.89×", "faster, 2.00×"))
    open_ones = [(a.kind, a.why) for a in part.answers if a.decoder == "cannot decide yet"]
    assert open_ones == [("qa", slower), ("math", faster), ("code", faster)]
    assert {(a.code, a.value) for a in part.answers[1:4]} == {("", "")}


def test_figures_hold_what_was_measured(table):
    found = figures(table)
    assert list(found) == list(FIGURES)
    for figure in found.values():
        graph_objects.Figure(figure)  # refuses what plotly does not know
    nodes, mbsu = found["nodes"]["data"][0], found["mbsu"]["data"][0]
    assert (nodes["x"], nodes["y"], nodes["text"]) == ([3.0], [1.5], ["3"])
    assert nodes["error_y"]["array"] == pytest.approx([0.1])
    assert (mbsu["x"], mbsu["y"]) == ([1.8], [1.5])
    (acceptance,), (lengths,) = found["acceptance"]["data"], found["lengths"]["data"]
    assert (acceptance["x"], acceptance["y"]) == ([1.0, 3.0], [0.5, 0.25])
    assert lengths["y"] == pytest.approx([2 / 3, 0, 0, 1 / 3], rel=1e-4)
    times = {each["name"]: each["x"] for each in found["time"]["data"]}
    parts = {"prefill": 1.0, "draft": 2.0, "target (verify)": 5.0, "host": 3.0}
    assert times == {name: [seconds] * 2 for name, seconds in parts.items()}
    (prompts,) = found["prompts"]["data"]
    by_prompt = dict(zip(prompts["text"], prompts["y"], strict=True))
    assert by_prompt["1"] == 2.0 and by_prompt["2"] == pytest.approx(1 / 1.1, abs=1e-5)
    assert found["quality"]["data"][0]["x"] == [0.5, 0.4]
    assert found["quality"]["layout"]["xaxis"]["title"]["text"] == "score"
    assert found["lengths"]["layout"]["xaxis"]["dtick"] == 1


def test_the_roofline_holds_a_calls_milliseconds_against_its_bytes_over_the_bandwidth(tmp_path):
    cell, bound = figures(tabled(tmp_path))["roofline"]["data"]
    assert (cell["name"], cell["x"], cell["y"]) == ("AR", [5.0], [10.0])
    assert cell["customdata"] == [0.25]
    assert (bound["x"], bound["y"]) == ([5.0], [2.5])  # 5 MB at 2 GB/s
    assert "2 GB/s" in bound["name"]
    slow = {"run_id": "b", "moved_bytes": 6e6, "bandwidth_bytes_per_s": 1e9}
    cells = ({**TIMES, **COUNTS, **each} for each in ({"run_id": "a", **BYTES}, slow))
    _, slow, fast = figures(own(tmp_path, *cells))["roofline"]["data"]  # a line for each end
    assert (slow["x"], slow["y"], slow["mode"]) == ([5.0, 6.0], [5.0, 6.0], "lines")
    assert fast["y"] == [2.5, 3.0]


def test_without_scores_quality_is_perplexity_and_its_axis_says_so(tmp_path):
    quality = figures(own(tmp_path, {"rouge2": None, "perplexity": 2.0}))["quality"]
    assert quality["data"][0]["x"] == [2.0]
    assert quality["layout"]["xaxis"]["title"]["text"] == "perplexity"


def test_a_swept_number_is_a_line_of_each_cell_and_a_swept_text_a_table(tmp_path):
    fast, slow = {"speedup": (1.5, 1.4, 1.6)}, {"speedup": (1.2, 1.1, 1.3)}
    batches = [{"batch_size": size, **each} for size, each in ((1, fast), (8, slow))]
    (swept,) = swept_of(read_rows([own(tmp_path, *batches, {"speedup": None, "batch_size": 2})]))
    assert (swept.title, swept.where) == ("speedup by batch size", "MT-bench, embedded")
    assert (swept.values, swept.lines) == (
        ["1", "8"],
        [("SD 3", ["1.50 [1.40, 1.60]", "1.20 [1.10, 1.30]"])],
    )
    (line,), layout = swept.chart["data"], swept.chart["layout"]
    assert (line["x"], line["y"]) == ([1, 8], [1.5, 1.2])
    assert (layout["xaxis"]["type"], layout["xaxis"]["tickvals"]) == ("log", [1, 8])
    screened = [{**each, "stage": "screen"} for each in batches]
    assert swept_of(read_rows([own(tmp_path, *screened)])) == []  # no evidence
    types = [{"dtype": name, **each} for name, each in (("float32", fast), ("bfloat16", slow))]
    (swept,) = swept_of(read_rows([own(tmp_path, *types)]))
    assert (swept.values, swept.chart) == (["bfloat16", "float32"], None)
    page = build_page(own(tmp_path, *types))
    assert "<th>bfloat16</th>" in page and "1.20 [1.10, 1.30]" in page


def test_what_is_not_the_same_is_named_and_what_follows_from_a_setting_is_not(tmp_path):
    cells = [
        {
            "batch_size": size,
            "temperature": warm,
            "prompts_digest": f"{size}",
            "speedup": 1.0 + size,
        }
        for size in (1, 2)
        for warm in (0.0, 1.0)
    ]
    found = swept_of(read_rows([own(tmp_path, *cells)]))
    assert [(each.title, each.where) for each in found] == [
        ("speedup by temperature", "MT-bench, embedded, batch size 1"),
        ("speedup by temperature", "MT-bench, embedded, batch size 2"),
        ("speedup by batch size", "MT-bench, embedded, temperature 0"),
        ("speedup by batch size", "MT-bench, embedded, temperature 1"),
    ]
    assert swept_of(read_rows([own(tmp_path, *cells[:1])])) == []


def test_what_was_not_measured_is_not_drawn_and_a_group_that_has_figures_is_shown_first(tmp_path):
    good = {"dtype": "float32", "speedup": 1.5, "nodes_per_call": 3.0}
    made, missing = drawn(*the_part(own(tmp_path, good)))
    assert list(made) == ["nodes"]
    assert [*made, *missing] == list(FIGURES)
    assert missing["roofline"] == "no row has a call's bytes"
    failed = {"status": "failed", "reason": "ValueError", "dtype": "bfloat16"}
    page = build_page(own(tmp_path, failed, good))
    assert all(why in page for why in missing.values())
    assert re.findall(r'<option value="(\d)" selected>', page) == ["1"]


def test_the_page_stands_alone_escapes_what_it_is_given_and_repeats_to_the_byte(table, capsys):
    assert main(["sweep", str(table)]) == 0
    assert "sweep.html" in capsys.readouterr().out
    page = (table.parent / "sweep.html").read_text(encoding="utf-8")
    assert page == build_page(table)
    ours = page.replace(packed(get_plotlyjs()), "")
    assert len(ours) < len(page)
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", ours)
    assert "<b>" not in re.sub(r"<b>(SD 3|AR)</b>", "", ours)
    assert ours.index("What to use") < ours.index("SD 3") < ours.index('id="figures"')


@pytest.mark.slow  # five thousand rows
def test_a_page_of_5000_rows_takes_under_15_s_and_5_mb(tmp_path):
    speeds = np.random.default_rng(0).uniform(0.5, 2.5, (25, 200)).tolist()
    cells, file = [], tmp_path / "own" / files.RESULTS
    for group, place in product(range(25), range(200)):
        speed, own = speeds[group][place], {"task": f"task{group}", "run_id": f"{group}-{place}"}
        name, spec = (("sd", "rsd_s", "spectr")[place % 3], f"{place}") if place else ("ar", "-")
        own |= {"speedup": around(speed, 0.1)} if place else {}
        more = {"mbsu": 2.0, "nodes_per_call": float(place), **TIMES, "delivered_tokens": 500}
        cells.append(row(name, spec, **{**MT_BENCH, **own, **more}))
        if place == 0 or speed > 2.3:
            record(file, own["run_id"], [[1, 2, 0, 3] * 5] * 30, rate=2.0, sitting="a")
    write(tmp_path, "own", *cells)
    start = time.process_time()
    page = build_page(file)
    assert time.process_time() - start < 15
    assert len(page.encode()) - len(packed(get_plotlyjs())) < 5e6
