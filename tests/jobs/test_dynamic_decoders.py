"""Jobs of dynamic trees, newer rules, EAGLE heads: planned, batched and resumed as all others."""

import pytest

from tests.jobs.test_command_line import main
from tests.jobs.tiny import eagle_heads, overrides, tokens_of

SMALL = {
    "dynamic": {
        **{"opt_tree": "2x2@3", "dyspec": "2x2@3", "sd_dynamic": "3"},
        **{"traversal_paths": "2x2", "lookup_or_draft": "3"},
    },
    "rules": {"block": "2", "traversal": "2-1", "optimal": "2x2", "top_and_sample": "2-1"},
    "eagle": {
        **{"eagle": "chain_5", "eagle2": "2x2@3", "eagle3": "2x2@3"},
        **{"eagle_rsd_s": "2x2", "eagle_traversal": "chain_5"},
    },
}
KINDS = list(SMALL)


def cells(*kinds):
    listed = [f"{name}:{spec}" for kind in kinds for name, spec in SMALL[kind].items()]
    return f"cells=[{','.join(listed)}]"


SHORT = ("warmup=0", "generation.max_new_tokens=6", "prompts=3")


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_of_them_resumes_behind_its_last_line_and_knows_no_batches(
    kind, family, run_job, tmp_path
):
    asked = (cells(kind), *eagle_heads(family), *SHORT)
    whole = run_job(*asked)
    assert [(r.facts.decoder, r.status) for r in whole] == [
        (name, "complete") for name in ("ar", *SMALL[kind])
    ]
    results = tmp_path / "results"
    before = [tokens_of(results, cell.run_id) for cell in whole]
    for cell in whole:
        folder = results / "runs" / cell.run_id
        (folder / "result.json").unlink()
        lines = (folder / "generations.jsonl").read_text().splitlines(keepends=True)
        (folder / "generations.jsonl").write_text("".join(lines[:2]) + lines[2][:20])
    again = run_job(*asked)
    assert [cell.run_id for cell in again] == [cell.run_id for cell in whole]
    assert [tokens_of(results, cell.run_id) for cell in again] == before
    batched = run_job(*asked, "engine.batch_size=3", results=tmp_path / "batched")
    tokens = [tokens_of(tmp_path / "batched", cell.run_id) for cell in batched]
    assert tokens == before


def test_they_are_planned(family, tmp_path, monkeypatch, capsys):
    given = overrides(family, tmp_path / "results", cells(*KINDS), *eagle_heads(family))
    assert main(monkeypatch, *given, "plan=true", "hydra/job_logging=none") == 0
    said = capsys.readouterr().out
    assert all(name in said for kind in KINDS for name in SMALL[kind])
    assert not (tmp_path / "results" / "default" / "results.csv").exists()


@pytest.mark.slow
def test_trees_that_vary_have_no_acceptance_rate_and_say_why(run_job):
    for row in run_job("cells=[sd:2,sd_dynamic:2,opt_tree:2x2@3]", "prompts=1", "warmup=0")[1:]:
        known = row.facts.decoder == "sd"
        told = [row.metrics[f"acceptance_rate{end}"] for end in ("", "_low", "_by_depth")]
        assert (told[0] is not None and told[2] is not None) if known else told == [None] * 3
        assert ("acceptance_rate: trees have another form" in row.reason) != known
