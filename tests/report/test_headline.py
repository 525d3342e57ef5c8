"""The card that answers first: which decoder to use, where AR is one of them."""

from __future__ import annotations

import pytest

from spec_bench.report.data.rows import Group, groups_of
from spec_bench.report.page.answer import answer
from spec_bench.report.page.headline import Headline, headline
from tests.report.rows import EMBEDDED, around, frame, row


def card(*rows: dict[str, object], **same: object) -> Headline:
    found = headline(group(*rows, **same))
    assert found is not None
    return found


def group(*rows: dict[str, object], **same: object) -> Group:
    (only,) = groups_of(frame(*({**each, **EMBEDDED, **same} for each in rows)))
    return only


AR = row("ar", speedup=(1.0, 1.0, 1.0), token_rate=around(50.0, 1.0))


def test_ar_is_the_answer_where_the_fastest_speculative_decoder_is_slower() -> None:
    slow = (row("rsd_c", "2-2-1", speedup=around(0.71, 0.03)), row("sd", "3", speedup=0.6))
    found = card(AR, *slow)
    assert (found.decoder, found.code, found.value, found.interval) == ("AR", "ar", "1.00×", "")
    assert found.sure == (  # [0.68, 0.74] if it were the only one
        "Use AR: the fastest speculative decoder, RSD-C 2-2-1, reaches 0.71 [0.67, 0.75] of its "
        "speed"
    )
    assert found.basis.startswith("best of 2 speculative cells, 8 prompts each; the interval cov")


def test_ar_is_the_answer_where_none_is_shown_to_be_faster() -> None:
    near = card(AR, row("sd", "3", speedup=around(1.02, 0.05)))
    assert near.decoder == "AR"
    assert near.sure.startswith("Use AR: none is shown to be faster; the fastest speculative")
    assert "SD 3, reaches 1.02 [0.97, 1.07] of its speed" in near.sure
    unknown = card(AR, row("sd", "3", speedup=1.4))
    assert unknown.decoder == "AR"
    assert "reaches 1.40 (no interval)" in unknown.sure
    few = card(AR, row("sd", "3", speedup=1.4), prompts=3)
    assert "reaches 1.40 (no interval: fewer than 5 prompts)" in few.sure


def test_a_decoder_whose_interval_lies_above_ar_is_the_answer_and_says_of_how_many() -> None:
    found = card(AR, row("sd", "3", speedup=around(1.5, 0.1)))
    assert (found.decoder, found.value, found.interval) == ("SD 3", "1.50×", "1.40 to 1.60")
    assert found.sure == "faster than AR, the only exact one"
    assert found.basis == "the only speculative cell, 8 prompts each"


def test_the_basis_says_how_many_seeds_were_pooled() -> None:
    found = card(AR, row("sd", "3", speedup=around(1.5, 0.1)), seeds="0,1,2")
    assert found.basis == "the only speculative cell, 8 prompts and 3 seeds each"
    one = card(AR, row("sd", "3", speedup=around(1.5, 0.1)), seeds="0")
    assert one.basis == "the only speculative cell, 8 prompts each"


def test_the_best_of_many_must_be_surer_to_be_faster_than_one_alone() -> None:
    lucky, others = row("sd", "3", speedup=around(1.1, 0.09)), [str(k) for k in range(4, 24)]
    assert card(AR, lucky).decoder == "SD 3"
    many = card(AR, lucky, *(row("sd", k, speedup=around(1.0, 0.09)) for k in others))
    assert many.decoder == "AR"
    assert "reaches 1.10 [0.9" in many.sure


def test_a_search_is_headlined_by_what_was_confirmed() -> None:
    screened = (row("sd", "3", speedup=around(2.9, 0.1)), row("sd", "2", speedup=around(2.0, 0.1)))
    assert headline(group(AR, *screened, stage="screen")) is None
    found = card(AR, *screened, stage="confirm")
    assert (found.decoder, found.interval) == ("SD 3", "2.78 to 3.02")
    assert found.basis.startswith("best of 2 confirmed cells, 8 prompts each; the interval cov")


@pytest.mark.parametrize(("rate", "decoder"), [(40.0, "AR"), (60.0, "SD 3")])
def test_without_a_speedup_the_token_rates_are_compared_with_ars_too(
    rate: float, decoder: str
) -> None:
    bare = {**AR, "speedup": None, "speedup_low": None, "speedup_high": None}
    found = card(bare, row("sd", "3", token_rate=around(rate, 1.0)))
    assert found.decoder == decoder
    assert ("reaches 0.80 of its speed" in found.sure) == (decoder == "AR")


def test_a_group_whose_cells_failed_has_no_card() -> None:
    assert headline(group(AR, row("sd", "3", status="failed", reason="X"))) is None


def test_without_any_time_a_card_counts_tokens_and_calls_nothing_fast() -> None:
    found = card(row("ar", block_efficiency=1.0), row("sd", "3", block_efficiency=2.5))
    assert (found.decoder, found.timed) == ("SD 3", False)
    assert card(AR, row("sd", "3", speedup=around(1.5, 0.1))).timed


def test_another_engines_row_is_no_answer_and_is_marked_where_there_is_no_other() -> None:
    theirs = row("hf_assisted", "3", speedup=around(3.0, 0.1), lossless="unaudited")
    ours = row("sd", "3", speedup=around(2.0, 0.1))
    assert card(AR, theirs, ours).decoder == "SD 3"
    served = card(row("served", "-", token_rate=80.0, lossless="unaudited"))
    assert served.value == "80.0 tokens/s" and not served.decoder.endswith("-")
    alone = card(AR, theirs)
    assert alone.decoder == "transformers assisted 3"
    assert alone.sure.endswith("(another engine)")


def test_heads_that_share_decoder_and_tree_are_told_apart_by_their_names() -> None:
    heads = (
        row("redrafter", "15x5", draft=f"runs/grid/{name}/heads", speedup=around(speed, 0.1))
        for name, speed in (("two", 1.5), ("one", 1.4))
    )
    (only,) = groups_of(frame(*({**EMBEDDED, **each} for each in (AR, *heads))))
    found = headline(only)
    assert found is not None
    assert found.decoder == "ReDrafter, exact match 15x5 two"
    assert found.sure == (
        "faster than AR, 2 of 2 are not told apart; no simpler one is within 5% of it"
    )


TIED = (
    row("rsd_s", "4x3", speedup=around(2.0, 0.2), nodes_per_call=12.0, draft_calls=3),
    row("sd", "3", speedup=around(1.95, 0.2), nodes_per_call=3.0, draft_calls=3),
    row("sd", "1", speedup=around(1.85, 0.2), nodes_per_call=1.0, draft_calls=1),
    row("sd", "2", speedup=around(1.5, 0.1), nodes_per_call=2.0, draft_calls=2),
)


def test_of_decoders_that_are_not_told_apart_the_simplest_that_is_close_is_the_answer() -> None:
    found = card(AR, *TIED)
    assert (found.decoder, found.value, found.tied) == ("SD 3", "1.95×", (3, 4))
    assert found.sure == (
        "faster than AR, 3 of 4 are not told apart; SD 3 is the simplest within 5% of the best "
        "(RSD-S 4x3, 2.00)"
    )


def test_an_experiment_comes_to_one_sentence_with_its_ties() -> None:
    alone = card(AR, row("sd", "3", speedup=around(1.5, 0.1)))
    assert answer([]) == ""
    assert answer([alone]) == alone.sentence
    assert answer([card(AR, *TIED), card(AR, *TIED, task="dolly")]) == (
        "Use SD 3 on XSum, Dolly: 1.95× (ties: 3 of 4 cells are not told apart; named is the "
        "simplest within 5% of the best)."
    )
    slow = card(AR, row("sd", "3", speedup=around(0.5, 0.1)), task="dolly")
    assert answer([alone, slow]) == "Use SD 3 on XSum: 1.50×; AR on Dolly."


def test_one_decoder_under_two_meters_is_no_search() -> None:
    sd = row("sd", "3", speedup=around(1.5, 0.05))
    meters = [{**sd, "energy_method": name} for name in ("nvml", "rapl")]
    assert "the only speculative cell" in card(AR, *meters).basis
    again = {**sd, "spec": "2", "energy_method": "rapl"}
    assert "best of 2 speculative cells" in card(AR, *meters, again).basis
    lookup = {**sd, "draft": None, "energy_method": None}
    assert "the only speculative cell" in card(AR, lookup).basis
