"""What a drafter remembers of earlier answers hangs on the order of the prompts alone."""

import json

CELL = ("decoder=suffix_decoding", "generation.temperature=0", "generation.max_new_tokens=24")


def test_a_job_that_was_stopped_proposes_what_it_would_have(run_job, tmp_path):
    rows = [{"document": "ab"[place % 2] * 9, "summary": "x", "id": place} for place in range(6)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def efficiency(folder, *more):
        given = (*CELL, f"task.source.path={path}", *more)
        (_, found) = run_job(*given, results=tmp_path / folder)
        return float(found.metrics["block_efficiency"])

    whole = efficiency("whole", "prompts=6")
    assert efficiency("parts", "prompts=3") < whole, "each text is said three times"
    assert efficiency("parts", "prompts=6") == whole
    assert efficiency("repeated", "prompts=6", "repeats=2") == whole
    assert efficiency("none", "prompts=6", "decoder.drafter.memory=none") < whole
