"""A row says how its forward passes really ran."""

import pytest

from spec_bench.engine.static_pass import Buffers
from tests.jobs.tiny import rows_of, tokens_of

CELLS = ("cells=[rsd_s:2x2]", "prompts=2", "warmup=1")
STATIC = "engine.compile=static"


def test_static_rows_made_nothing_within_their_windows_and_have_the_plain_rows_tokens(
    run_job, tmp_path
):
    plain = run_job(*CELLS, results=tmp_path / "plain")
    static = run_job(*CELLS, STATIC)
    for row in rows_of(tmp_path / "results"):
        assert (row["status"], row["passes"], row["captures"]) == ("complete", "static", "0")
    for row in rows_of(tmp_path / "plain"):
        assert (row["passes"], row["captures"]) == ("", "")
    for one, other in zip(plain, static, strict=True):
        assert one.run_id != other.run_id
        assert tokens_of(tmp_path / "plain", one.run_id) == tokens_of(
            tmp_path / "results", other.run_id
        )


@pytest.mark.slow
def test_passes_that_miss_what_changes_are_caught_and_their_rows_say_eager(
    run_job, tmp_path, monkeypatch
):
    fill = Buffers.fill

    def stale(own, *given):
        """Tokens are never brought into the buffers."""
        kept = own.tokens.clone()
        fill(own, *given)  # type: ignore[arg-type]
        own.tokens.copy_(kept)

    plain = run_job(*CELLS, results=tmp_path / "plain")
    monkeypatch.setattr(Buffers, "fill", stale)
    caught = run_job(*CELLS, STATIC, "engine.threads=1")
    assert {row["passes"] for row in rows_of(tmp_path / "results")} == {"eager"}
    for one, other in zip(plain, caught, strict=True):
        assert tokens_of(tmp_path / "plain", one.run_id) == tokens_of(
            tmp_path / "results", other.run_id
        )
