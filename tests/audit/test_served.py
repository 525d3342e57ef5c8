"""The audit's command: a lossless server and rule pass, each kind of loss fails."""

import itertools
import math
import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from spec_bench.audit import DEFAULT_DECODERS, command_line, models
from spec_bench.audit.catalogue import (
    SETTINGS,
    AuditLine,
    AuditPart,
    format_case_pattern,
    iter_audit_cases,
    run_parts_with_progress,
    select_parts,
)
from spec_bench.audit.decoders import enumerate_decoder_error
from spec_bench.audit.models import audit_pair
from spec_bench.audit.rules import TOLERANCE, enumerate_rule_error, iter_rule_cases
from spec_bench.audit.served_tokens import (
    ServedTokenStatistics,
    _correct_by_holm,
    compute_answer_statistics,
    compute_token_statistics,
    run_statistical_tests,
)
from spec_bench.audit.toys import MarkovModel, make_random_markov_model
from spec_bench.core.gumbel import compute_sibling_distributions
from spec_bench.decode.config import build_decoder
from spec_bench.engine.loading import ModelSpec, load_model
from spec_bench.jobs.config.cells import Cell
from spec_bench.records.sampling import SamplingSettings
from spec_bench.records.types import Request
from spec_bench.server.endpoint import ServerClient
from spec_bench.verify.base import rule
from spec_bench.verify.path_rule import Traversal, traversal
from spec_bench.verify.rules import recursive_rejection
from tests.commands import audit
from tests.families import decoder_settings
from tests.jobs.tiny import make_family
from tests.said import naming, one_line
from tests.server.completions import Completions, serving

VOCAB = 12
TARGET = make_random_markov_model(VOCAB, seed=1)
WARM = SamplingSettings(temperature=1.0)


def test_the_law_of_a_token_by_hand():
    logits = torch.tensor([[0.5, 0.25, 0.25], [0.9, 0.1, 0.0]]).log()
    law = compute_token_statistics(logits, torch.tensor([2, 2]), WARM)
    assert law.log_p.tolist() == pytest.approx([math.log(0.25), -math.inf])
    assert law.entropy[0] == pytest.approx(1.5 * math.log(2))
    assert law.variance[0] == pytest.approx(0.25 * math.log(2) ** 2)
    assert law.mass_before[0] == pytest.approx(0.75)  # the tie goes to the lower id
    assert law.is_first.tolist() == [True, False]


@pytest.mark.parametrize("side", [1, -1])
def test_log_probabilities_that_are_off_by_1_96_deviations_have_a_chance_of_one_in_twenty(side):
    one = np.ones(100)  # of variance 1 each, so that the sum's deviation is 10
    law = ServedTokenStatistics((side * 0.196 - 1) * one, one, one, 0 * one, one > 1)
    assert run_statistical_tests(law)[0].p_value == pytest.approx(0.05, abs=1e-4)


def sampled(model, answers, seed):
    """Answers of 40 tokens drawn from a chain one at a time, behind one prompt."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(answers):
        said = [3]
        for _ in range(40):
            law = model.logits[model.find_logits_index(said)].softmax(dim=-1)
            said.append(int(torch.multinomial(law, 1, generator=generator)))
        yield (3,), tuple(said[1:])


def test_plain_sampling_passes_every_test_at_about_the_stated_rate():
    alarms = 0
    for seed in range(60):
        law = compute_answer_statistics(TARGET, [*sampled(TARGET, 4, seed)], WARM)
        alarms += any(
            not each.passed for each in run_statistical_tests(law, seed, false_alarm_rate=0.1)
        )
    assert alarms <= 14  # of 60 at a rate of at most 0.1: chance below 0.001


BEST = TARGET.logits.topk(2, dim=-1)
OTHERS = {  # the logits that answers are drawn by, how many, and how often each comes
    "sharp": (TARGET.logits * 1.4, 20, 1),
    "flat": (TARGET.logits * 0.6, 20, 1),
    "the two best swapped": (TARGET.logits.scatter(-1, BEST.indices, BEST.values.flip(-1)), 20, 1),
    "one answer again and again": (TARGET.logits, 1, 25),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_law_is_found(other):
    logits, answers, times = OTHERS[other]
    drawn = [*sampled(MarkovModel(logits), answers, seed=5)] * times
    assert not all(
        each.passed
        for each in run_statistical_tests(compute_answer_statistics(TARGET, drawn, WARM))
    )


def test_a_token_without_probability_fails_at_once():
    logits = TARGET.logits.clone()
    logits[..., 7] = -torch.inf
    law = compute_answer_statistics(MarkovModel(logits), [((3,), (1, 7, 2))], WARM)
    assert [(each.name, each.passed) for each in run_statistical_tests(law)] == [
        ("within the support", False)
    ]


def answering(sample, shift=0):
    """A server that drafts, above 0 by ``sample`` if given; ``shift`` favours a greedy token."""
    numbers = itertools.count()
    draft = make_random_markov_model(VOCAB, seed=2)

    def answer(body):
        asked = SamplingSettings(temperature=body["temperature"])
        settings = sample if sample and asked.temperature else asked
        request = Request(str(next(numbers)), tuple(body["prompt"]), body["max_tokens"])
        decoder = build_decoder(decoder_settings("sd", "3"), TARGET, [draft], settings)
        (generation,) = decoder.generate([request], body.get("seed", 0))
        tokens, steps, at = list(generation.tokens), [], 0
        if not asked.temperature:
            tokens[-1] = (tokens[-1] + shift) % VOCAB
        for step in generation.steps:
            steps.append(tokens[at : at + step.delivered])
            at += step.delivered
        return steps

    return Completions(answer)


def lines_of(completions):
    """How the audit of a server ends, line by line."""
    asked = models.ServerAuditRequests([(3,), (5, 4)], 30, 8, WARM, 0, ())
    with serving(completions):
        lines = list(models.audit_server(ServerClient(completions.url, "target"), TARGET, asked))
    return {line.subject: bool(line.passed) for line in lines}


@pytest.mark.parametrize(
    ("server", "greedy", "sampled"),
    [
        (answering(None), True, True),
        (answering(SamplingSettings(temperature=3.0)), True, False),
        (answering(None, shift=1), False, True),
    ],
    ids=["lossless", "another temperature", "one greedy token differs"],
)
def test_a_server_that_loses_something_is_found_by_what_it_loses(server, greedy, sampled):
    found = lines_of(server)
    assert len(found) == 4  # 16 answers: too few first tokens for a test of their own
    assert found.pop("server, greedy: equals the target") == greedy
    assert all(found.values()) == sampled


@pytest.mark.parametrize(("rate", "failed"), [(0.029, ""), (0.031, "c"), (0.041, "abc")])
def test_holm_holds_the_smallest_against_the_rate_over_all(rate, failed):
    tests = {"a": (9, 0.02, ""), "b": (9, 0.04, ""), "c": (9, 0.01, "")}
    found = _correct_by_holm(tests, rate)
    assert [each.name for each in found if not each.passed] == [*failed]


def test_the_command_audits_a_server_of_a_folders_model(tmp_path, capsys):
    make_family(tmp_path)
    folder = str(tmp_path / "target")
    target = load_model(ModelSpec(folder))
    ar = models.parse_decoders_without_heads("ar")["ar"]
    plain = {each: ar.build(target, [], SamplingSettings(each)) for each in (0.0, 1.0)}

    def answer(body):
        request = Request("0", tuple(body["prompt"]), body["max_tokens"], (2,))
        decoder = plain[body["temperature"]]
        return [[t] for t in decoder.generate([request], body.get("seed", 0))[0].tokens]

    command = ["--target", folder, "--answers", "2", "--max-new-tokens", "6"]
    with serving(Completions(answer)) as served:
        assert audit([*command, "--server", served.url]) == 0
        assert "4 of 4 checks passed" in capsys.readouterr().out
        served.faults += ["garbage"] * 3
        assert audit([*command, "--server", served.url]) == 2
        assert audit([*command, "--server", served.url, "--server-kind", "llama_cpp"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert (
        first
        == f"spec-bench check decoders: {served.url}: an event that is no JSON, after 3 attempts"
    )
    assert "not llama.cpp's server" in second


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--server", "http://x"], "--server goes with --target"),
        (["--server", "http://x", "--target", "a", "--draft", "b"], "without --draft"),
        (["--server", "http://x", "--target", "a", "--temperature", "0"], "must be above 0"),
        (["--decoders", "sd:3"], "--decoders goes with --target"),
        (["--prompts", "no/such.txt"], "'no/such.txt'"),
        (["--prompts", "/dev/null"], "null has no prompt"),
    ],
)
def test_what_does_not_go_together_is_said_before_anything_is_loaded(arguments, said, capsys):
    assert audit(arguments) == 2
    assert said in capsys.readouterr().err


def test_each_usual_decoder_names_parts_of_the_audit_that_check_what_it_samples():
    parts = [AuditPart(case.name, tuple) for case in iter_audit_cases("exact")]
    for name, config in models.parse_decoders_without_heads(DEFAULT_DECODERS).items():
        found = [part.name for part in select_parts(parts, format_case_pattern(config))]
        assert found, name
        assert all(part.endswith(config.verifier.name_with_settings) for part in found)
        assert all(part.removeprefix(f"{config.drafter.kind}: ").startswith(config.tree.name)
                   for part in found)  # fmt: skip


def test_a_pair_that_is_not_there_is_named_before_the_rules_are_enumerated(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(command_line, "iter_node_and_path_rule_parts", None)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Why?\n")
    missing = str(tmp_path / "missing")
    assert audit(["--target", missing, "--draft", missing, "--prompts", str(prompts)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert repr(missing) in line


def broken():
    raise RuntimeError("no\nhead")


FINE = AuditLine("sd", "enumeration", "error 0", True)
PARTS = [AuditPart("rule: k_seq", broken), AuditPart("sd", lambda: [FINE])]


def test_a_fault_is_the_failure_of_its_part_and_the_others_go_on():
    lines = list(run_parts_with_progress(PARTS))
    assert [(each.subject, each.passed) for each in lines] == [("rule: k_seq", False), ("sd", True)]
    assert re.fullmatch(r"RuntimeError: no head \(.*test_served.py:[0-9]+\)", lines[0].result)


def test_a_line_is_said_on_standard_error_before_the_next_part_begins(capsys):
    next(run_parts_with_progress([AuditPart("sd", lambda: [FINE]), *PARTS]))
    assert "sd: error 0" in capsys.readouterr().err


def interrupted():
    yield FINE
    raise KeyboardInterrupt


def test_what_was_audited_before_an_interrupt_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(
        command_line, "list_parts_of_groups", lambda *_: [AuditPart("sd", interrupted)]
    )
    with pytest.raises(KeyboardInterrupt):
        audit([])
    assert "error 0" in capsys.readouterr().out


def test_a_pattern_fits_the_name_with_or_without_its_kind_or_is_told_what_is_near():
    assert select_parts(PARTS, "k_*") == select_parts(PARTS, "rule: *") == PARTS[:1]
    assert select_parts(PARTS, None) == PARTS
    other = AuditPart("eagle: widths 2-1 + k_seq", broken)
    assert select_parts([*PARTS, other], "*k_seq*") == [PARTS[0], other]
    with pytest.raises(ValueError, match="fits no part"):
        select_parts([*PARTS, other], "widths*")  # the trees of draft models alone
    with pytest.raises(ValueError, match=naming("--only", "'k_sek'", "k_seq")):
        select_parts(PARTS, "k_sek")


def test_a_failing_part_ends_with_status_1(monkeypatch, capsys):
    monkeypatch.setattr(command_line, "iter_node_and_path_rule_parts", lambda: iter(PARTS))
    for name in ("exact_decoder", "approximate_decoder", "beam"):
        monkeypatch.setattr(command_line, f"iter_{name}_parts", lambda *_: iter(()))
    assert audit([]) == 1
    assert "1 of 2 checks passed" in capsys.readouterr().out


CUT = SETTINGS["temperature 1.5, top-p 0.9"]


def right(p, q, tokens, valid):
    return recursive_rejection(p, q, tokens, valid, replacement=False)


def timid(p, q, tokens, valid):
    """Accepts nine times in ten where it should, the residual as it was."""
    verdict = right(p, q, tokens, valid)
    return verdict._replace(acceptance=0.9 * verdict.acceptance)


def backwards(p, q, tokens, valid):
    """Judges the children in the opposite order of their drawing."""
    verdict = right(p, q, tokens.flip(1), valid.flip(1))
    return verdict._replace(acceptance=verdict.acceptance.flip(1))


def misread(p, q, tokens, valid):
    """Divides by the draft's own probability after it has changed."""
    return recursive_rejection(p, q, tokens, valid, replacement=True)


def eager(p, q, tokens, valid):
    """Accepts as if the target were surer than it is."""
    verdict = right(p, q, tokens, valid)
    return verdict._replace(acceptance=(1.3 * verdict.acceptance).clamp(max=1.0))


def heedless(p, q, tokens, valid):
    """Takes every child for one that exists."""
    return right(p, q, tokens, torch.ones_like(valid))


def thorough(p, q, tokens, valid):
    """Takes the tokens of children that do not exist out of the draft, too."""
    return right(p, compute_sibling_distributions(q[:, 0].log(), tokens), tokens, valid)


def squeezed(p, q, tokens, valid):
    """Knows one law for all children alone, and distinct siblings have several."""
    return right(p, q.squeeze(1)[:, None], tokens, valid)


def brittle(p, q, tokens, valid):
    """Knows small vocabularies alone."""
    return right(p, q, tokens, valid) if p.shape[1] < 9 else 1 / 0


@dataclass(frozen=True)
class Whole(Traversal):
    """Traversal with a choice that its exactness hangs on, and nobody says so."""

    factor: float = 1.0

    def judge(self, depth):
        def judged(tree, p):
            verdict = traversal(tree, p)
            return verdict._replace(success=(self.factor * verdict.success).clamp(max=1.0))

        return judged


@pytest.fixture
def registered(request):
    laws = ("iid", "without_replacement") if request.param is Whole else ("without_replacement",)
    rule("guest", siblings=laws)(request.param)
    yield request.param
    rule.forget("guest")


@pytest.mark.parametrize("registered", [right, timid, backwards, misread], indirect=True)
def test_a_rule_that_registers_is_audited_alone_and_in_decoders(registered):
    (case,) = [case for case in iter_rule_cases() if case.name.startswith("guest")]
    alone, _ = enumerate_rule_error(case)
    configs = [case.config for case in iter_audit_cases("exact") if case.tree.policy.spec == "2-1"]
    ours = [each for each in configs if each.verifier.name == "guest" and each.heads is None]
    ends = [enumerate_decoder_error(config, CUT)[0] for config in ours]
    if registered is right:
        assert max(alone, *ends) <= TOLERANCE
    else:
        assert alone > 1e-3
        # Of two tokens, which this top-p leaves, the second is certain for the misread rule.
        assert min(ends) > 1e-4 or registered is misread


@pytest.mark.parametrize("name", ["rsd_c", "rsd_s"])
@pytest.mark.parametrize(
    "registered",
    [right, timid, backwards, misread, eager, heedless, thorough],
    indirect=True,
)
def test_a_job_calls_a_rule_of_another_package_exact_only_if_it_is(registered, name):
    settings = decoder_settings(name) | {"verifier": {"rule": "guest"}}
    if registered is right:
        assert Cell.from_mapping(settings).config.verifier.mark == "exact"
        return
    with one_line(naming("guest", "tests", "off by")):
        Cell.from_mapping(settings)


def failing(p, q, tokens, valid):
    raise KeyError("oops")


def narrow(p, q, tokens, valid):
    verdict = right(p, q, tokens, valid)
    return verdict._replace(acceptance=verdict.acceptance[:, :1])


def bare(p, q, tokens, valid):
    return right(p, q, tokens, valid).acceptance


def silent(p, q, tokens, valid):
    """Decides nothing."""


def undefined(p, q, tokens, valid):
    """Has no number where the draft cannot draw a token, in some of the cases."""
    verdict = right(p, q, tokens, valid)
    return verdict._replace(residual=verdict.residual + 0 * (q[:, 0] / q[:, 0]))


def late(p, q, tokens, valid):
    """Never accepts the fourth child, which wide trees have."""
    verdict = right(p, q, tokens, valid)
    return verdict._replace(acceptance=verdict.acceptance * (torch.arange(tokens.shape[1]) != 3))


def writing(p, q, tokens, valid):
    p[:, 0] = 0.0
    return right(p, q, tokens, valid)


def doubting(p, q, tokens, valid):
    raise AssertionError


FAILS = {
    late: "is off by 0.*",
    writing: "must not write into its arguments p and q$",
    doubting: r".*ended in AssertionError \(.*test_served\.py:[0-9]+\)$",
    failing: r"KeyError: 'oops' \(.*test_served\.py:[0-9]+\)",
    narrow: r".*acceptance is \[20, 1\], must be \[20, 2\]: rows x children$",
    bare: "must return a Verdict, got Tensor$",
    squeezed: "enumerated, it ended in .*Error",
    silent: "must return a Verdict, got NoneType$",
    undefined: r"is not finite: see spec-bench check decoders --only 'rule: guest\*'.*approximate",
    timid: "is off by 0.*spec-bench check decoders --only 'rule: guest",
}


@pytest.mark.parametrize("registered", FAILS, indirect=True)
def test_a_rule_that_fails_is_one_line_with_rule_package_error_and_place(registered):
    settings = decoder_settings("rsd_s") | {"verifier": {"rule": "guest"}}
    with one_line(f"rule 'guest' of package 'tests'.*{FAILS[registered]}"):
        Cell.from_mapping(settings)


SAID = {
    narrow: r"acceptance is \[6, 1\], must be \[6, 2\]",
    doubting: r"AssertionError \(.*test_served\.py:[0-9]+\)$",
    right: "^audited rule: guest, without replacement: error",
}


@pytest.mark.parametrize("registered", SAID, indirect=True)
def test_the_audit_says_what_a_job_says_and_how_many_children_it_tried(registered, capsys):
    assert audit(["--only", "rule: guest*"]) == (registered is not right)
    said = capsys.readouterr()
    assert re.search(SAID[registered], said.err, re.MULTILINE)
    assert registered is not right or "4 children" in " ".join(said.out.split())


def test_an_approximate_rule_is_listed_among_the_rules_with_how_far_it_is_off(capsys):
    rule("guest", siblings=("without_replacement",), mark="approximate")(timid)
    try:
        assert audit(["--only", "rule: guest*"]) == 0
    finally:
        rule.forget("guest")
    said = capsys.readouterr().out
    assert "approximate" in said and "0 of 0 checks passed, 1 only measured" in said


@pytest.mark.parametrize("registered", [Whole], indirect=True)
def test_a_rule_of_whole_trees_is_enumerated_with_the_settings_that_it_has(registered):
    settings = decoder_settings("sd")
    assert (
        Cell.from_mapping(settings | {"verifier": {"rule": "guest"}}).config.verifier.mark
        == "exact"
    )
    with pytest.raises(ValueError, match=naming("guest", "tests", "off by")):
        Cell.from_mapping(settings | {"verifier": {"rule": "guest", "factor": 1.3}})


@pytest.mark.parametrize("registered", [right, brittle], indirect=True)
def test_a_pairs_audit_goes_on_whatever_another_packages_rule_does(registered, tmp_path):
    make_family(tmp_path)
    paths = [str(tmp_path / name) for name in ("target", "draft")]
    lines = list(audit_pair(*paths, ["The harbour"], 1, "all"))
    guests = [line for line in lines if "+ guest" in line.subject]
    own = [line for line in lines if line not in guests]
    assert {line.subject.partition(" ")[0] for line in lines} >= {"widths", "chain", "lookup:"}
    assert guests and lines.index(guests[0]) < lines.index(own[-1])
    assert all(line.passed for line in own)
    assert {line.passed for line in guests} == {registered is right}


def test_a_prompt_that_cannot_be_decoded_is_a_difference_and_the_others_are_compared(
    tmp_path, monkeypatch
):
    def answer(decoder, request):
        return None if request.prompt_id == "0" else (1, 2)

    monkeypatch.setattr("spec_bench.audit.models._decode_greedily", answer)
    make_family(tmp_path)
    paths = [str(tmp_path / name) for name in ("target", "draft")]
    (line,) = audit_pair(*paths, ["The harbour", "The boat"], 1, "sd:2")
    assert not line.passed
    assert "1 equal, 0 near-ties" in line.result and "1 different" in line.result


def test_a_decoder_that_claims_no_exactness_is_compared_and_not_judged(tmp_path):
    make_family(tmp_path)
    paths = [str(tmp_path / name) for name in ("target", "draft")]
    (line,) = audit_pair(*paths, ["The harbour"], 2, "dsbd_one_cache")
    assert line.passed is None and line.result.startswith("approximate: ")
