"""The card that answers first: which decoder to use, where AR is one of them."""

from functools import partial

import pytest

from spec_bench.report.data.rows import groups_of
from spec_bench.report.page.headline import answer, headline
from tests.report import rows as made
from tests.report.rows import EMBEDDED, around, frame

row = partial(made.row, **EMBEDDED)


def card(*rows, **same):
    (group,) = groups_of(frame(*({**each, **same} for each in rows)))
    return headline(group)


def sd(spec, *speedup, **values):
    """Of so many times AR's speed: a value, or it with its interval."""
    return row("sd", spec, speedup=speedup if speedup[1:] else speedup[0], **values)


AR = row("ar", speedup=(1.0, 1.0, 1.0), token_rate=around(50.0, 1.0))
FAST = sd("3", 1.5, 1.4, 1.6)
RSD_S = row("rsd_s", "4x3", speedup=(1.61, 1.49, 1.82))
TABLES = {
    "the best estimate is uncertain, the second sure": (
        (sd("3", 1.67, 0.53, 2.11), RSD_S),
        "use RSD-S 4x3, 1.61× [1.47 to 1.87]: surely faster than AR, tied with 1 other; SD 3 "
        "looks faster (1.67), not surely (8 prompts, intervals corrected for 2 cells)",
    ),
    "a sure one below any number of larger guesses": (
        (*(sd(str(k), 3.0 + k, 0.5, 9.0) for k in range(2, 6)), RSD_S),
        "use RSD-S 4x3, 1.61× [1.44 to 1.93]: surely faster than AR, tied with 4 others; SD 5 "
        "looks faster (8.00), not surely (8 prompts, intervals corrected for 5 cells)",
    ),
    "all are uncertain": (
        (sd("3", 1.67, 0.53, 2.11), row("rsd_s", "4x3", speedup=(1.21, 0.95, 1.42))),
        "cannot decide yet: SD 3 looks faster, 1.67× [0.42 to 2.21]; try prompts=120 (8 prompts, "
        "intervals corrected for 2 cells)",
    ),
    "three prompts": (
        (sd("3", 1.79, prompts=3),),
        "cannot decide yet: SD 3 looks faster, 1.79×; try prompts=20 (3 prompts)",
    ),
    "one cell that is faster": (
        (FAST,),
        "use SD 3, 1.50× [1.40 to 1.60]: surely faster than AR, the only exact one (8 prompts)",
    ),
    "one cell": (
        (sd("3", 1.1, 0.95, 1.27),),
        "cannot decide yet: SD 3 looks faster, 1.10× [0.95 to 1.27]; try prompts=40 (8 prompts)",
    ),
    "AR is surely the fastest": (
        (sd("3", 0.9, 0.84, 0.96), sd("2", 0.7, 0.66, 0.75)),
        "use AR: the fastest other one, SD 3, reaches 0.90× [0.84 to 0.96] of its speed (8 "
        "prompts, 2 cells)",
    ),
    "AR where no cell's own interval reaches above it": (
        (row("rsd_c", "2-2-1", speedup=around(0.95, 0.05)), sd("3", 0.6, 0.5, 1)),
        "use AR: the fastest other one, RSD-C 2-2-1, reaches 0.95× [0.90 to 1.00] of its speed (8 "
        "prompts, 2 cells)",
    ),
    "a cell that no interval excludes keeps AR from being the answer": (
        (row("rsd_c", "2-2-1", speedup=around(0.7, 0.03)), sd("3", 0.6)),
        "cannot decide yet: SD 3 looks no faster, 0.60×; try prompts=20 (8 prompts, intervals "
        "corrected for 2 cells)",
    ),
    "a tie with AR": (
        (sd("3", 1.0, 0.98, 1.02, prompts=50), sd("2", 0.7, 0.66, 0.75, prompts=50)),
        "a tie: SD 3 is as fast as AR within 5%, 1.00× [0.98 to 1.02] (50 prompts, intervals "
        "corrected for 2 cells)",
    ),
    "a tie of two that are faster": (
        (sd("3", 1.6, 1.5, 1.7, prompts=50), sd("2", 1.58, 1.48, 1.69, prompts=50)),
        "use SD 3, 1.60× [1.49 to 1.72]: surely faster than AR, tied with 1 other (50 prompts, "
        "intervals corrected for 2 cells)",
    ),
    "another engine's row is no answer": (
        (row("hf_assisted", "3", speedup=around(3.0, 0.1), lossless="unaudited"), FAST),
        "use SD 3, 1.50× [1.40 to 1.60]: surely faster than AR, the only exact one (8 prompts)",
    ),
    "seeds are pooled": (
        (row("sd", "3", speedup=around(1.5, 0.1), seeds="0,1,2"),),
        "use SD 3, 1.50× [1.40 to 1.60]: surely faster than AR, the only exact one (8 prompts and "
        "3 seeds)",
    ),
}


@pytest.mark.parametrize("table", TABLES)
def test_the_answer_looks_at_every_cell_and_says_what_they_can_decide(table):
    cells, told = TABLES[table]
    found = card(AR, *cells)
    assert found.sentence == f"XSum: {told}."
    assert (found.code == "ar") == told.startswith("use AR") == (found.speed == "1.00×")


def test_the_best_of_many_must_be_surer_to_be_faster_than_one_alone():
    lucky = sd("3", *around(1.1, 0.09))
    assert card(AR, lucky).decoder == "SD 3"
    many = card(AR, lucky, *(sd(str(k), *around(1.0, 0.09)) for k in range(4, 24)))
    assert (many.decoder, many.code) == ("cannot decide yet", "")
    assert "SD 3 looks faster, 1.10× [0.9" in many.sure


def test_a_search_is_headlined_by_what_was_confirmed():
    screened = (sd("3", *around(2.9, 0.1)), sd("2", *around(2.0, 0.1)))
    assert card(AR, *screened, stage="screen") is None
    found = card(AR, *screened, stage="confirm")
    assert (found.decoder, found.interval) == ("SD 3", "2.78 to 3.02")
    assert found.basis == "8 prompts, intervals corrected for 2 confirmed cells"
    few = card(AR, sd("3", 1.4), stage="confirm", prompts=3)
    assert "try confirm.prompts=20" in few.sentence


@pytest.mark.parametrize(("rate", "decoder"), [(40.0, "AR"), (60.0, "SD 3")])
def test_without_a_speedup_the_token_rates_are_compared_with_ars_too(rate, decoder):
    bare = {**AR, "speedup": None, "speedup_low": None, "speedup_high": None}
    found = card(bare, row("sd", "3", token_rate=around(rate, 1.0)))
    assert found.decoder == decoder
    assert ("reaches 0.80× [0.76 to 0.84] of its speed" in found.sure) == (decoder == "AR")
    assert found.sure.endswith("(not measured side by side)")
    near = card(bare, row("sd", "3", token_rate=around(50.0, 1.0)))
    assert near.sure.startswith("SD 3 is as fast as AR within 5%, 1.00× [0.96 to 1.04]")


def test_without_any_time_a_card_counts_tokens_and_failed_cells_have_no_card():
    found = card(row("ar", block_efficiency=1.0), row("sd", "3", block_efficiency=2.5))
    assert (found.decoder, found.sure) == ("SD 3", "no speed was measured")
    assert card(AR, row("sd", "3", status="failed", reason="X")) is None


def test_another_engines_row_is_marked_where_there_is_no_other():
    theirs = row("hf_assisted", "3", speedup=around(3.0, 0.1), lossless="unaudited")
    served = card(row("served", "-", token_rate=80.0, lossless="unaudited"))
    assert served.value == "80.0 tokens/s" and not served.decoder.endswith("-")
    alone = card(AR, theirs)
    assert alone.decoder == "transformers assisted 3"
    assert alone.sure.endswith("(another engine)")


def test_heads_that_share_decoder_and_tree_are_told_apart_by_their_names():
    heads = (
        row("redrafter", "15x5", draft=f"runs/grid/{name}/heads", speedup=around(speed, 0.1))
        for name, speed in (("two", 1.5), ("one", 1.4))
    )
    found = card(AR, *heads)
    assert found.decoder == "ReDrafter, exact match 15x5 two"
    assert found.sure == "surely faster than AR, tied with 1 other"


TIED = (
    row("rsd_s", "4x3", speedup=around(2.0, 0.2), nodes_per_call=12.0, draft_calls=3),
    sd("3", *around(1.95, 0.2), nodes_per_call=3.0, draft_calls=3),
    sd("1", *around(1.85, 0.2), nodes_per_call=1.0, draft_calls=1),
    sd("2", *around(1.5, 0.1), nodes_per_call=2.0, draft_calls=2),
)


def test_of_decoders_that_are_not_told_apart_the_simplest_that_is_close_is_the_answer():
    found = card(AR, *TIED)
    assert (found.decoder, found.value, found.tied) == ("SD 3", "1.95×", (3, 4))
    tied = "tied with 2 others, the simplest within 5% of RSD-S 4x3"
    assert found.sure == f"surely faster than AR, {tied}"


def test_an_experiment_comes_to_one_sentence_with_its_ties():
    alone = card(AR, FAST)
    few = card(AR, sd("3", 1.79), prompts=3, task="dolly")
    slow = card(AR, sd("3", *around(0.5, 0.1)), task="dolly")
    for cards, said in (
        ([], ""),
        ([alone], alone.sentence),
        (
            [card(AR, *TIED), card(AR, *TIED, task="dolly")],
            "Use SD 3 on XSum, Dolly: 1.95× (tied with others on 2 of 2).",
        ),
        ([alone, slow], "Use SD 3 on XSum: 1.50×; AR on Dolly."),
        ([few, alone], "Use SD 3 on XSum: 1.50×; cannot decide yet on Dolly."),
        ([few, few], "Cannot decide yet on Dolly (2 settings)."),
    ):
        assert answer(cards) == said


def test_one_decoder_under_two_meters_is_no_search():
    meters = [{**FAST, "energy_method": name} for name in ("nvml", "rapl")]
    assert "cells" not in card(AR, *meters).basis
    again = {**FAST, "spec": "2", "energy_method": "rapl"}
    assert "2 cells" in card(AR, *meters, again).basis
    lookup = {**FAST, "draft": None, "energy_method": None}
    assert "cells" not in card(AR, lookup).basis
