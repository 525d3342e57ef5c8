"""What is typed in records is read back as it was written, or is told to be altered."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest

from spec_bench.records import checksums, sampling
from spec_bench.records.checksums import BLANK
from spec_bench.records.sampling import SamplingSettings
from spec_bench.records.types import CellFacts, CellResult, Reason, format_reasons, parse_reasons
from spec_bench.sinks.rows import (
    flatten_facts,
    parse_facts,
    result_from_json,
    result_to_json,
    result_to_row,
)
from spec_bench.vocabulary import columns
from tests.cells import facts, result
from tests.said import naming, one_line

REASONS = (
    Reason("energy_j_per_token", "nvml: no device, try another"),
    Reason("later_turns", "2 not asked, no fixed answer to continue"),
)


def test_every_fact_is_a_column_that_says_what_a_cell_is():
    names = {field.name for field in fields(CellFacts)} - {"sampling"}
    names |= SamplingSettings().get_columns().keys()
    assert names <= set(columns.list_value_column_names("identity", "setting"))


def test_a_sampling_setting_that_keeps_every_token_is_empty_in_rows_and_absent_from_run_ids():
    usual = SamplingSettings()
    assert (usual.get_columns()["min_p"], "min_p" in usual.get_run_id_settings()) == ("", False)
    assert list(usual.get_run_id_settings()) == [
        *("temperature", "top_k", "top_p", "draft_temperature", "probability_dtype")
    ]
    chosen = SamplingSettings(min_p=0.25)
    assert (chosen.get_columns()["min_p"], chosen.get_run_id_settings()["min_p"]) == (0.25, 0.25)


@pytest.mark.parametrize(
    "told",
    [
        facts(),
        facts(draft=(), decoder="ar", spec="-"),
        facts(
            draft=("a/b", "c"),
            tree_attention=False,
            later_turns="own",
            sampling=SamplingSettings(top_p=0.9),
        ),
        facts(simulated_acceptance=(0.8, 0.65), sampling=SamplingSettings(0.0), seed=3),
        facts(sampling=SamplingSettings(draft_temperature=0.0, min_p=0.1)),
        facts(draft=("a", "b"), draft_revision=("1f", "-"), threads=4, device="cpu", engine=7),
    ],
)
def test_facts_come_back_from_their_row(told):
    assert parse_facts(json.loads(json.dumps(flatten_facts(told)))) == told


@pytest.mark.parametrize(
    "cell",
    [
        replace(result(metrics={"mbsu": 1.5, "bleu": None}), reasons=REASONS),
        CellResult("x", facts(), "failed", reasons=(Reason("", "OutOfMemoryError: no", "t.txt"),)),
    ],
)
def test_a_result_comes_back_from_its_file(cell):
    assert result_from_json(json.loads(json.dumps(result_to_json(cell)))) == cell


def test_a_result_of_an_older_file_is_read():
    older = {"pair": "p", "target": "t", "draft": "d", "task": "xsum", "decoder": "sd", "spec": "3"}
    content = {"run_id": "id", "labels": {**older, "baseline": "same job"}, "metrics": {}}
    found = result_from_json({**content, "status": "complete", "lossless": "exact", "reason": ""})
    assert found == result()


def test_reasons_are_written_in_one_line_and_come_back():
    text = "energy_j_per_token: nvml: no device, try another; later_turns: 2 not asked, no fixed"
    assert format_reasons(REASONS).startswith(text)
    assert parse_reasons(format_reasons(REASONS)) == REASONS
    assert parse_reasons("") == ()


@pytest.mark.parametrize("message", ["ValueError: a; b: c", "RuntimeError: ", "no colon"])
def test_a_failure_is_one_reason_whatever_its_message(message):
    failure = Reason("", message, "results/runs/0123/trace.txt")
    assert parse_reasons(str(failure)) == (failure,)
    assert str(failure).endswith("(trace: results/runs/0123/trace.txt)")


def test_a_reason_is_one_of_several_whatever_its_text():
    reasons = (Reason("speedup", "first; then: second"), Reason("bleu", "none"))
    assert [each.column for each in parse_reasons(format_reasons(reasons))] == ["speedup", "bleu"]


def test_a_failed_cell_claims_nothing():
    row = result_to_row(CellResult("x", facts(), "failed", reasons=(Reason("", "E: no"),)))
    assert (row["lossless"], row["baseline"], row["reason"]) == ("", "", "E: no")
    assert not set(row) - set(columns.list_value_column_names("identity", "setting", "state"))


BODY = b"begin sha256:not the digest" + BLANK + b" end"


def test_no_single_bit_can_change():
    data = checksums.fill_in_checksum(BODY)
    for place in range(8 * len(data)):
        altered = bytearray(data)
        altered[place // 8] ^= 1 << place % 8
        with pytest.raises(ValueError, match="digest"):
            checksums.verify_checksum(bytes(altered))


def test_a_part_of_a_file_is_none_nor_is_one_without_a_digest_or_a_place_for_it():
    for length in (0, 1, 27, len(BODY) - 1):
        with pytest.raises(ValueError, match="digest"):
            checksums.verify_checksum(checksums.fill_in_checksum(BODY)[:length])
    with pytest.raises(ValueError, match="no digest"):
        checksums.verify_checksum(b"begin end")
    for data in (b"no place", BLANK + b"sha256:later"):
        with pytest.raises(ValueError, match="place"):
            checksums.fill_in_checksum(data)


def test_a_mapping_comes_back_without_its_digest_and_not_if_altered(tmp_path):
    path, content = tmp_path / "a.json", {"b": 1, "a": {"c": 0.1}}
    path.write_text(json.dumps(checksums.redact_and_add_checksum(content)))
    assert checksums.read_verified_json(path) == content
    path.write_text(path.read_text().replace("0.1", "0.2"))
    with pytest.raises(ValueError, match="altered"):
        checksums.read_verified_json(path)


def test_facts_are_read_by_the_types_of_their_fields():
    labels = {**flatten_facts(facts()), "tree_attention": "false", "threads": "4", "draft": "a,b"}
    read = parse_facts({**labels, "simulated_acceptance": "0.5,0.25", "later_turns": ""})
    assert (read.tree_attention, read.threads, read.later_turns) == (False, 4, None)
    assert (read.draft, read.simulated_acceptance) == (("a", "b"), (0.5, 0.25))
    with pytest.raises(ValueError, match="integer"):
        parse_facts({**labels, "seed": "many"})


def test_a_setting_that_no_other_engine_has_is_refused_there(monkeypatch):
    monkeypatch.setattr(sampling, "_PORTABLE_SETTINGS", ("temperature", "top_k", "top_p"))
    assert SamplingSettings(0.5).get_portable_options() == {
        "temperature": 0.5,
        "top_k": 0,
        "top_p": 1.0,
    }
    with one_line(naming("generation.min_p", "0.0", "got 0.25")):
        SamplingSettings(min_p=0.25).get_portable_options()


def test_a_rows_sampling_is_described_without_what_keeps_every_token():
    row = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": "", "draft_temperature": None}
    assert sampling.describe_sampling(row) == "temperature 0"
    row |= {"temperature": np.float64(0.5), "top_k": np.int64(7), "min_p": 0.1, "top_p": np.nan}
    assert sampling.describe_sampling(row) == "temperature 0.5, top-k 7, min-p 0.1"
