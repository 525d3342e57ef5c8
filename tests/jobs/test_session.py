"""How the cells of a job take turns, without models: decoders that answer at once."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from spec_bench.jobs.job import results
from spec_bench.jobs.job.job import advise_on_compilation
from spec_bench.jobs.job.session import CellRun, Session, decode_interleaved, index_timings
from spec_bench.jobs.store.store import CellStore
from spec_bench.records.types import Generation, Request, StepRecord
from tests.families import built, tiny_pair

PROMPTS = [Request(f"{number}", (1, 2), 1) for number in range(6)]


def answer(prompt_id, prefill_s=0.1, **more):
    step = StepRecord(0, 0, 0, 1)
    return Generation(prompt_id, (int(prompt_id),), "length", (step,), prefill_s, 0.2, 0, 0, **more)


class Decoder:
    """Notes what it is asked and what it remembers; has an error or seconds for some prompts."""

    def __init__(self, name, calls, wrong):
        self._name, self._calls, self._wrong = name, calls, wrong
        self.remembered = []

    def remember_for_drafting(self, answers):
        self.remembered.append([tokens for (tokens,) in answers])

    def generate(self, batch, *_):
        (request,) = batch
        self._calls.append((self._name, request.prompt_id))
        found = self._wrong.get(request.prompt_id, 0.1)
        if isinstance(found, Exception):
            raise found
        return [answer(request.prompt_id, found)]


@pytest.fixture
def session_of(tmp_path):
    """A session of cells, the baseline first, and the calls of their decoders."""

    def made(*names, prompts=3, **wrong):
        calls, runs, requests = [], [], PROMPTS[:prompts]
        window = SimpleNamespace(begin_window=lambda: None, end_window=dict)
        for name in names:
            store = CellStore(tmp_path, name)
            store.folder.mkdir(parents=True)
            runs.append(CellRun(SimpleNamespace(name=name, title=name), store, window))
            runs[-1].decoder = Decoder(name, calls, wrong.get(name, {}))
        asked = SimpleNamespace(repeats=1, seed=0, sink=SimpleNamespace(progress=False))
        engine = SimpleNamespace(batch_size=1, batching="static")
        settings = SimpleNamespace(
            request=asked, engine=engine, server_settings=None, device="cpu", is_repeatable=True
        )
        given = SimpleNamespace(
            requests=requests, split_into_waves=lambda: [requests], categories={}
        )
        given.fill_in_own_answers = lambda batch, done: batch
        metering = SimpleNamespace(metered_batch=lambda *_: nullcontext(), add_energy_shares=list)
        return Session(settings, runs, runs, given, metering, window), runs, calls

    return made


def test_the_cells_take_turns_and_another_one_begins_with_every_prompt(session_of):
    session, runs, calls = session_of("ar", "b", "c")
    decode_interleaved(session, runs)
    assert "".join(name[0] for name, _ in calls) == "abc" + "bca" + "cab"
    assert [prompt for _, prompt in calls] == [*"000111222"]
    assert [[*run.store.load_first_repeat()] for run in runs] == [[*"012"]] * 3


def test_a_decoder_is_told_the_answers_before_a_prompt_whatever_is_there_already(session_of):
    session, runs, _ = session_of("ar")
    runs[0].generations_by_repeat[0]["1"] = answer("1")
    decode_interleaved(session, runs)
    assert runs[0].decoder.remembered == [[], [0, 1]]  # prompts 0 and 2


def test_errors_of_single_prompts_give_a_cell_up_only_three_in_a_row(session_of):
    error = RuntimeError("no such kernel")
    for places, given_up in ((("0", "1", "3", "4"), False), (("1", "2", "3"), True)):
        session, runs, _ = session_of(f"cell {given_up}", prompts=6)
        runs[0].decoder = Decoder("b", [], dict.fromkeys(places, error))
        decode_interleaved(session, runs)
        assert {*runs[0].prompt_errors} == {*places}
        assert (runs[0].failure is not None) is given_up


def test_draft_calls_are_counted_where_a_tree_is_as_deep_as_it_was_drafted():
    steps = tuple(StepRecord(3, depth, 0, 1) for depth in (2, 4, 3))
    found = [replace(answer("0"), steps=steps)]
    for name, calls in (("dyspec", 3.0), ("sd", 2)):
        decoder = built(name, tiny_pair("llama"), spec=None if name == "dyspec" else "2")
        assert results._get_draft_calls_per_step(decoder, found) == calls


def test_seconds_below_zero_of_any_kind_fail_the_cell(session_of):
    session, runs, _ = session_of("b", b={"1": -0.1})
    decode_interleaved(session, runs)
    assert "the clock ran backwards" in str(runs[0].failure)
    assert [*runs[0].store.load_first_repeat()] == ["0"]


def test_a_baseline_of_an_earlier_session_is_timed_again_beside_what_a_cell_lacks(session_of):
    session, runs, calls = session_of("ar", "b", prompts=2)
    plain, cell = runs
    before = [answer(each, session="before") for each in "01"]
    plain.store.append_generations(before)
    plain.generations_by_repeat[0] |= {each.prompt_id: each for each in before}
    cell.generations_by_repeat[0]["0"] = answer("0", session="before")
    session.baseline_timings = index_timings(before)
    decode_interleaved(session, runs)
    assert calls == [("b", "1"), ("ar", "1")]
    assert [*plain.store.load_first_repeat().values()] == before
    (again,) = plain.store.load_retimed()
    assert (again.prompt_id, again.session) == ("1", session.name)
    assert results._select_repeated_and_paired_ids(session, cell) == ["0", "1"]
    del session.baseline_timings[session.name, 0, "1"]
    assert results._select_repeated_and_paired_ids(session, cell) == [
        "0"
    ]  # the other has no baseline beside it


@pytest.mark.parametrize(
    ("mode", "device", "prepare_s", "decode_s", "said"),
    [
        ("static", "cuda", 20, 3 * 3600, "static_inductor, which compiles for at most 360 s"),
        ("static", "cuda", 20, 7000, ""),  # twice 180 s are more than a twentieth
        ("static", "cpu", 20, 3 * 3600, ""),
        ("static_inductor", "cuda", 300, 3 * 3600, ""),
        ("static_inductor", "cuda", 300, 100, "done sooner with engine.compile=none"),
        ("none", "cuda", 300, 100, ""),
    ],
)
def test_a_job_says_when_its_size_wants_another_way_to_compile(
    mode, device, prepare_s, decode_s, said, caplog
):
    pair = SimpleNamespace(specs=[SimpleNamespace(compile=mode)])
    settings = SimpleNamespace(pair=pair, server_settings=None, device=device)
    with caplog.at_level("INFO"):
        advise_on_compilation(settings, 2, prepare_s, decode_s)
    assert len(caplog.messages) == bool(said)
    assert said in caplog.text
