"""One prompt's failure is that prompt's: the others are decoded, and the row says what is lost."""

import json

import pytest

from spec_bench.decode.decoder import Decoder
from spec_bench.decode.rows import require_distributions
from spec_bench.decode.verdict import VerdictLayout
from spec_bench.jobs.app import run_config
from spec_bench.jobs.config.compose import compose_config
from tests.jobs.tiny import failing, main, overrides, rows_of, tokens_of

CELLS = ("cells=[sd:3]", "warmup=1")


@pytest.fixture(scope="module")
def whole(family, tmp_path_factory):
    """An undisturbed job's folder and results."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run_config(compose_config(overrides(family, folder, *CELLS)))


def lawless(monkeypatch, prompt, deep=0):
    """Logits of a prompt are NaN, of the trees of so many levels or more."""
    check = VerdictLayout.require_distributions

    def broken(layout, prompt_id, line):
        require_distributions(prompt_id, prompt_id != prompt or len(layout.node_counts) <= deep)
        return check(layout, prompt_id, line)

    monkeypatch.setattr(VerdictLayout, "require_distributions", broken)


def at(monkeypatch, prompt, error):
    """A decoder fails whenever a prompt is in its batch."""
    generate = Decoder.generate

    def fail(self, requests, *arguments):
        if prompt in [each.prompt_id for each in requests]:
            raise error
        return generate(self, requests, *arguments)

    monkeypatch.setattr(Decoder, "generate", fail)


@pytest.mark.parametrize("fault", ["NaN", "unknown"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("prompt", ["0", "2"])
def test_the_others_of_job_and_batch_are_decoded_as_if_it_was_not_there_and_a_rerun_tries_it_again(
    run_job, whole, tmp_path, monkeypatch, batch, prompt, fault
):
    folder, undisturbed = whole
    given = (*CELLS, f"engine.batch_size={batch}")
    with monkeypatch.context() as patch:
        if fault == "NaN":
            lawless(patch, prompt)
        else:
            at(patch, prompt, RuntimeError("no such kernel"))
        results = run_job(*given)
    for result, before in zip(results, undisturbed, strict=True):
        expected = tokens_of(folder, before.run_id)
        del expected[prompt]
        assert tokens_of(tmp_path / "results", result.run_id) == expected
        assert (result.status, result.baseline) == ("partial", "same job")
        counted = [
            result.metrics[name] for name in ("prompts", "prompts_failed", "delivered_tokens")
        ]
        assert counted == [3, 1, sum(map(len, expected.values()))]
        assert result.metrics["speedup"] is not None
        said = "NaN" if fault == "NaN" else "RuntimeError: no such kernel"
        assert f"prompts_failed: 1 of 4: {prompt!r}, " in result.reason and said in result.reason
    for result, before in zip(run_job(*given), undisturbed, strict=True):
        assert (result.status, result.metrics["prompts"]) == ("complete", 4)
        found = tokens_of(tmp_path / "results", result.run_id)
        assert found == tokens_of(folder, before.run_id)
        assert "prompts_failed" not in result.metrics


def test_what_one_decoder_alone_cannot_decode_is_left_out_of_its_row_and_paired_by_prompt(
    run_job, monkeypatch
):
    lawless(monkeypatch, "1", deep=1)
    plain, sd = run_job(*CELLS)
    assert (plain.status, plain.metrics["prompts"]) == ("complete", 4)
    assert (sd.status, sd.metrics["prompts"], sd.baseline) == ("partial", 3, "same job")


def test_what_the_baseline_alone_cannot_decode_is_in_no_row_that_is_compared_with_it(
    run_job, monkeypatch
):
    with monkeypatch.context() as patch:
        failing(patch, RuntimeError("no"), "ar", "1")
        plain, sd = run_job(*CELLS)
    for row in (plain, sd):
        assert (row.status, row.metrics["prompts"], row.metrics["speedup"] is None) == (
            ("partial", 3, False)
        )
    assert "prompts_failed: 1 of 4: '1', RuntimeError: no" in sd.reason
    assert [each.status for each in run_job(*CELLS)] == ["complete"] * 2


def test_a_batch_without_room_is_a_row_that_says_so(run_job, monkeypatch):
    failing(monkeypatch, MemoryError("12 GiB"), "sd")
    (plain, sd) = run_job(*CELLS, "engine.batch_size=3")
    assert (plain.status, sd.status) == ("complete", "failed")
    assert "MemoryError: a batch of 3: 12 GiB" in sd.reason


def test_a_template_that_refuses_one_prompt_leaves_the_others(run_job, family):
    text = json.loads((family / "rows.jsonl").read_text().splitlines()[1])["document"]
    refusing = "{% if '" + text[:20] + "' in messages[0].content %}{{ raise_exception('too odd') }}"
    chat = f'pair.chat_template="{refusing}{{% endif %}}{{{{ messages[0].content }}}}"'
    for row in run_job(*CELLS, "task.chat=true", chat):
        assert (row.status, row.metrics["prompts"], row.metrics["prompts_failed"]) == (
            ("partial", 3, 1)
        )
        assert "too odd" in row.reason
    with pytest.raises(ValueError, match="too odd"):
        run_job("cells=[]", "decoder=ar", "task.chat=true", chat.replace(text[:20], ""))


def test_a_prompt_that_is_too_long_leaves_the_others_and_the_status_is_1(
    family, tmp_path, monkeypatch
):
    rows = [("long", "the boat " * 200), ("whole", "the boat left"), ("more", "the tide came")]
    file = tmp_path / "rows.jsonl"
    lines = [json.dumps({"id": n, "document": t, "summary": "it did"}) for n, t in rows]
    file.write_text("\n".join(lines))
    results = tmp_path / "results"
    given = overrides(family, results, *CELLS, f"task.source.path={file}")
    assert main(monkeypatch, *given) == 1
    for row in rows_of(results):
        assert (row["status"], row["prompts"]) == ("partial", "2")
        assert "prompts_failed: 1 of 3: 'long'" in row["reason"] and "positions" in row["reason"]


def test_a_score_that_raises_leaves_the_rows_other_numbers(run_job, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def compute(predictions):\n    raise KeyError('no such word')\n")
    for row in run_job(*CELLS, f"task.metrics=[{file},rouge2]"):
        assert row.status == "partial"
        assert row.metrics["rouge2"] is not None and row.metrics["token_rate"] is not None
        assert "no such word" in row.reason


def test_a_score_that_is_no_number_leaves_its_cell_empty_and_says_which(run_job, tmp_path):
    file = tmp_path / "m.py"
    file.write_text("def compute(predictions):\n    return {'good': 0.9, 'ratio': float('inf')}\n")
    for row in run_job(*CELLS, f"task.metrics=[{file}]"):
        assert (row.status, row.metrics["m_good"], row.metrics["m_ratio"]) == (
            "complete",
            0.9,
            None,
        )
        assert "m_ratio: m_ratio came out as inf" in row.reason
