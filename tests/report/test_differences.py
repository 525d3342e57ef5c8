"""What a reader would not guess stands under the tables that it is true of, and nowhere else."""

import re

import pytest

from spec_bench.report.papers.pairs import pair_configs
from spec_bench.report.papers.paper import load_paper
from spec_bench.system.files import package_folder
from tests.report.rows import EMBEDDED, MT_BENCH, row, write
from tests.report.sheets import table
from tests.report.test_measured_tables import MCSD

CHAT = {
    **{"pair": "llama2_chat_7b", "target": "meta-llama/Llama-2-7b-chat-hf"},
    "draft": "double7/vicuna-160m",
}
SAMPLE = {"data_source": "embedded"}
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
    "our draft": (
        "162M parameters where the paper's draft has 115M: -3% at L = 5",
        "rsd/1",
        rsd(mbsu=2.0),
        True,
    ),
    "embedded draft": ("stand-in's", "rsd/1", rsd(**EMBEDDED, mbsu=2.0), False),
    "the paper's draft": ("stand-in's", "rsd/1", rsd(**OPT, mbsu=2.0), False),
    "no MBSU": ("stand-in's", "mcsd/7", acceptance(pair="llama2_7b"), False),
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
}
EXPERIMENTS = {"rsd": "rsd-exp1", "mcsd": "mcsd-acceptance", "eagle": "eagle-heads"}


@pytest.mark.parametrize("case", CASES)
def test_a_difference_is_told_where_it_is_one(case, tmp_path):
    text, name, rows, told = CASES[case]
    rows = rows if isinstance(rows, list) else [rows]
    write(tmp_path, EXPERIMENTS[name.partition("/")[0]], *rows)
    grid = table(name, tmp_path, str(rows[0]["pair"]))
    assert grid.measured
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
    card = (package_folder("embedded") / "MODEL_CARD.md").read_text(encoding="utf-8")
    shown = card.partition("seen in training |")[2].partition("##")[0]
    shares = {task: int(n) / 100 for task, n in re.findall(r"\| (\w+) \|.*\| (\d+)% \|", shown)}
    assert len(shares) == 8
    stated = pair_configs()["embedded"].seen_in_training
    assert {task: share for task, share in shares.items() if share} == stated


def test_papers_whose_rule_or_draft_is_another_than_ours_say_so():
    """These stand in ``paper.yaml``, each under the one table it is about."""
    for paper, number, text in (("redrafter", 2, "rejection sampling"), ("dsbd", 1, "greedily")):
        says = [t.number for t in load_paper(paper).tables if text in " ".join(t.notes)]
        assert says == [number]


def test_every_stand_in_states_what_it_stands_for():
    for name, config in pair_configs().items():
        assert bool(config.stand_in) == bool(config.paper_draft_parameters), name
        assert bool(config.paper_draft_parameters) <= bool(config.draft_parameters), name
