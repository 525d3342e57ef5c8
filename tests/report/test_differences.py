"""What a reader would not guess stands under the tables that it is true of, and nowhere else."""

import re

import pytest

from spec_bench.report.papers.pairs import pair_configs
from spec_bench.report.papers.paper import load_paper
from spec_bench.system.files import package_folder
from tests.report.rows import EMBEDDED, MT_BENCH, row, write
from tests.report.test_measured_tables import MCSD, measured_table

CHAT = {
    **{"pair": "llama2_chat_7b", "target": "meta-llama/Llama-2-7b-chat-hf"},
    "draft": "double7/vicuna-160m",
}
SAMPLE = {"data_source": "embedded"}


def notes(name, folder, experiment, *rows):
    """What stands under a table of these cells."""
    write(folder, experiment, *rows)
    grid = measured_table(name, folder, str(rows[0]["pair"]))
    assert grid.measured
    return "\n".join(grid.notes)


def of_rsd(folder, table=1, **values):
    made = row("sd", "5", **{"block_efficiency": 2.2, "draft_calls": 5, **values})
    return notes(f"rsd/{table}", folder, "rsd-exp1", made)


def test_rates_say_that_the_prefill_is_left_out(tmp_path):
    assert "prefill left out" in of_rsd(tmp_path / "1", token_rate=30.0)
    cells = [row("mcsd_wor", k, **MCSD, acceptance_rate=0.5) for k in ("1", "4")]
    assert "prefill" not in notes("mcsd/7", tmp_path / "2", "mcsd-acceptance", *cells)


def test_mbsu_says_how_much_another_size_of_the_draft_does(tmp_path):
    # (5 x 115 / 6738 + 1) / (5 x 162.4 / 6738 + 1) = 0.969
    said = of_rsd(tmp_path / "1", mbsu=2.0)
    assert "162M parameters where the paper's draft has 115M: -3% at L = 5" in said
    assert "stand-in's" not in of_rsd(tmp_path / "2", **EMBEDDED, mbsu=2.0)
    opt = {"pair": "opt_13b", "target": "facebook/opt-13b", "draft": "facebook/opt-125m"}
    assert "stand-in's" not in of_rsd(tmp_path / "3", **opt, mbsu=2.0)
    # One that shows no MBSU.
    cells = [row("mcsd_wor", k, **{**MCSD, "pair": "llama2_7b"}, acceptance_rate=0.5) for k in "14"]
    assert "stand-in's" not in notes("mcsd/7", tmp_path / "4", "mcsd-acceptance", *cells)


def test_chat_targets_that_complete_a_text_are_named(tmp_path):
    said = of_rsd(tmp_path / "1", 7, **CHAT)
    assert "Ours, XSum: a text to complete" in said and "llama2_chat_7b was tuned" in said
    assert "to complete" not in of_rsd(tmp_path / "2")  # a base model
    dolly = {**CHAT, "task": "dolly", "temperature": 1.0, "top_p": 0.95}  # asked in its template
    assert "to complete" not in of_rsd(tmp_path / "3", 9, **dolly)


def test_heads_that_learned_the_targets_answers_are_told_from_published_ones(tmp_path):
    ours = {**MT_BENCH, "draft": "embedded:heads/medusa"}
    said = notes(
        "eagle/5", tmp_path / "1", "eagle-heads", row("medusa", "chain_5", **ours, speedup=1.5)
    )
    assert "learned the target's own answers" in said
    others = {**ours, "draft": "FasterDecoding/medusa-vicuna-7b-v1.3"}
    for place, cell in enumerate(
        (row("medusa", "chain_5", **others, speedup=1.5), row("sd", "5", **MT_BENCH, speedup=1.5))
    ):
        folder = tmp_path / f"other{place}"
        assert "own answers" not in notes("eagle/5", folder, "eagle-heads", cell)


@pytest.mark.parametrize(("task", "share"), [("mt_bench", "all"), ("dolly", "52%")])
def test_prompts_that_the_models_were_trained_on_are_counted(task, share, tmp_path):
    made = {**EMBEDDED, "task": task, "temperature": 1.0, "block_efficiency": 2.0}
    table, experiment, spec = "eagle/5", "eagle-heads", "5"
    if task == "dolly":
        table, experiment, made["top_p"] = "rsd/9", "rsd-exp1", 0.95
    said = notes(table, tmp_path / "1", experiment, row("sd", spec, **made, **SAMPLE))
    assert f"{share} of the sample's prompts" in said
    public = row("sd", spec, **made, data_source="hub")
    assert "sample's prompts" not in notes(table, tmp_path / "2", experiment, public)
    other = row("sd", spec, **{**made, "pair": "vicuna_7b"}, **SAMPLE)
    assert "sample's prompts" not in notes(table, tmp_path / "3", experiment, other)


def test_samples_that_were_not_trained_on_say_nothing(tmp_path):
    assert "sample's prompts" not in of_rsd(tmp_path, **EMBEDDED, **SAMPLE)  # XSum


def test_the_embedded_pair_states_what_its_model_card_counts():
    card = (package_folder("embedded") / "MODEL_CARD.md").read_text(encoding="utf-8")
    table = card.partition("seen in training |")[2].partition("##")[0]
    shares = {task: int(n) / 100 for task, n in re.findall(r"\| (\w+) \|.*\| (\d+)% \|", table)}
    assert len(shares) == 8
    stated = pair_configs()["embedded"].seen_in_training
    assert {task: share for task, share in shares.items() if share} == stated


@pytest.mark.parametrize(("picked", "says"), [("1-1-1-1-1", True), ("4-1", False)])
def test_a_tree_that_was_picked_and_is_a_chain_is_called_one(picked, says, tmp_path):
    cells = (
        row("ar", "-", **MCSD, speedup=1.0),
        row("sd", "1", **MCSD, speedup=1.9),
        row("mcsd_wor", picked, **MCSD, speedup=2.5),
        row("mcsd_wor", "1-1-1" if picked == "4-1" else "2-1", **MCSD, speedup=2.2),
    )
    said = notes("mcsd/2", tmp_path, "mcsd-search", *cells)
    assert ("MCSD: 1x1x1x1x1, where picked, is a plain chain" in said) == says
    assert ("plain chain" in said) == says


def test_papers_whose_rule_or_draft_is_another_than_ours_say_so():
    """These stand in ``paper.yaml``, each under the one table it is about."""
    for paper, number, text in (("redrafter", 2, "rejection sampling"), ("dsbd", 1, "greedily")):
        says = [t.number for t in load_paper(paper).tables if text in " ".join(t.notes)]
        assert says == [number]


def test_every_stand_in_states_what_it_stands_for():
    for name, config in pair_configs().items():
        assert bool(config.stand_in) == bool(config.paper_draft_parameters), name
        assert bool(config.paper_draft_parameters) <= bool(config.draft_parameters), name
