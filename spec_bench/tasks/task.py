"""A task: rows from a source, a prompt template, stop texts, references and scores.

Knows text and token ids, nothing about models or how scores are computed (``scores`` are names). A
tokenizer is anything that behaves like one of ``transformers``.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from spec_bench.records.ends import StopCriteria, cut_at_stop
from spec_bench.records.sampling import parse_generation_settings
from spec_bench.records.types import ProgramTests, SqlReference
from spec_bench.settings.fields import format_value
from spec_bench.settings.validation import (
    Ge,
    MinLen,
    NonEmptyStr,
    Requirement,
    StrictBool,
    StrictInt,
    settings,
)
from spec_bench.system.errors import UsageError
from spec_bench.tasks.example import (
    ConversationTurns,
    Example,
    cut_middle_of_text,
    get_answers_or_references,
    get_earlier_answers,
    read_fastchat_answers,
    read_references,
    read_turns,
)
from spec_bench.tasks.prompt_files import (
    CHAT_FIELDS,
    PROMPT_FIELDS,
    LocatedRow,
    Row,
    find_prompt_field,
    find_reference_field,
    read_prompt,
)
from spec_bench.tasks.source import (
    EMBEDDED_SAMPLES,
    HubArchive,
    RowSource,
    fetch_archive,
    format_source_label,
    get_commit_of_read_dataset,
    get_read_row_counts,
    load_rows,
)
from spec_bench.tasks.spider import SCHEMA_LINE, get_database_file, read_schema
from spec_bench.tasks.template import (
    TEMPLATE_REQUIREMENT,
    choose_template,
    encode_all_but_failing,
    encode_text,
    fill_template,
    list_placeholders,
    look_up_field,
    render_chat,
    require_exact_placeholders,
    require_templates_use_fields,
)

RUNS_SQL = "execution_accuracy"  # the score that queries the row's database
_TOPIC_FIELDS = {"title", "db_id"}  # fields that many questions of a data set may share
# average number of questions per topic above which a note counts the topics
_QUESTIONS_PER_TOPIC = 10
_NO_TEMPLATE_REMEDY = "set pair.chat_template, or task.chat to auto or false"
RUNS_CODE = "pass_at_1"  # the score that runs the row's tests


def _or_empty(value: Any) -> Any:
    """Replaces null by an empty mapping."""
    return {} if value is None else value


# Defaults of a task for the group ``generation``.
TaskGeneration = Annotated[
    dict[str, Any], BeforeValidator(partial(parse_generation_settings, where="task.generation"))
]

Texts = Annotated[
    tuple[NonEmptyStr, ...],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    Requirement("a text or a list of texts, none of them empty"),
]


@settings
class Task:
    """A task of ``conf/task/*.yaml``, made by ``build_task``."""

    name: NonEmptyStr
    source: RowSource
    # text of one turn with ``{field}`` in it; of several templates the first is used that has all
    # its fields filled (for an optional context)
    template: Annotated[Texts, MinLen(1), Requirement(TEMPLATE_REQUIREMENT)]
    # name in the template -> column or path into columns; ``id`` and ``category`` need no template
    fields: Annotated[
        dict[str, NonEmptyStr | tuple[NonEmptyStr, ...]], BeforeValidator(_or_empty)
    ] = field(default_factory=dict)
    # a field that holds a list of turns, one text, or a list of chat messages (see ``read_turns``),
    # for a template with ``{turn}``; other templates make one turn of the row
    turns: NonEmptyStr | None = None
    # the field that holds the reference answer, a text or a list of several (with ``turns``: one
    # per turn), if any
    reference: NonEmptyStr | None = None
    # True: the tokenizer's chat template; False: plain text; ``auto``: the chat template if the
    # tokenizer has one
    chat: Literal["auto", True, False] = False
    # one turn as plain text, with ``{turn}``, for tokenizers without a chat template
    plain: NonEmptyStr = "{turn}"
    stop: Texts = ()  # texts that end an answer
    score_until: Texts = ()  # texts that end the scored part of an answer; decoding continues
    # number of worked examples before every question: rows of a file (``shots_from``), of another
    # split of the dataset (``shots_split``), or else the source's last rows, which are not asked
    shots: Annotated[StrictInt, Ge(0)] = 0
    shots_from: NonEmptyStr | None = None
    shots_split: NonEmptyStr | None = None
    # maximum number of tokens of a prompt; its end is dropped, even if that is the question
    prompt_limit: Annotated[StrictInt, Ge(1)] | None = None
    # names of quality metrics, or metric modules of ``evaluate`` by path or hub id
    scores: Texts = ()
    metrics: Texts | None = None  # replace ``scores`` if given
    # word splitting of BLEU and ROUGE, by sacrebleu's name: zh, ja-mecab, char, intl, ...; None:
    # each metric's own, which needs blanks between words (and ROUGE's Latin letters)
    tokenize: NonEmptyStr | None = None
    # this task's defaults for settings that the run leaves open: max_new_tokens, and the papers'
    # temperature, top_k and top_p
    generation: TaskGeneration = field(default_factory=dict)
    # format of a table in ``{schema}``; the names of columns are joined by commas
    schema_line: NonEmptyStr = SCHEMA_LINE
    # folder with ``<db_id>/<db_id>.sqlite``, for ``{schema}`` in a template and for execution
    # accuracy; None: next to the rows
    database: NonEmptyStr | None = None
    # the hub's archive of such a folder, for rows from the hub
    databases: HubArchive | None = None
    # answers that later turns continue: ``fixed``, the same for every decoder; ``own``, the
    # decoder's; ``none``: later turns are not asked
    later_turns: Literal["fixed", "own", "none"] = "fixed"
    # for ``fixed``: a file of answers (see ``read_fastchat_answers``) that later turns continue;
    # None: the references
    answers: NonEmptyStr | None = None
    # whether FastChat's judge grades the answers; ``spec-bench answers`` then writes the questions
    judged: StrictBool = False
    # treatment of a prompt that is too long for the models (see ``fit_to_context``)
    overlong: Literal["fail", "truncate", "skip"] = "fail"
    # whether a limit takes the first rows or random ones
    sample: Literal["first", "random"] = "first"
    sample_seed: Annotated[StrictInt, Ge(0)] = 0  # seed of ``sample``
    # a line before the template in every prompt; left out with the embedded sample, because its
    # models cannot follow instructions
    instruction: NonEmptyStr | None = None
    # system message of conversations without one
    system: NonEmptyStr | None = None
    # prefix of a turn whose text has to be fetched first; such rows are refused
    placeholder: NonEmptyStr | None = None
    answered_only: StrictBool = False  # whether rows without a reference answer are left out
    run_code: StrictBool = False  # consent to a score that runs what a model wrote

    def __post_init__(self) -> None:
        if self.metrics is not None:
            object.__setattr__(self, "scores", self.metrics)
        if duplicates := [name for name, count in Counter(self.scores).items() if count > 1]:
            raise UsageError(f"task.scores names {duplicates[0]} twice")
        require_templates_use_fields(
            self.template, self.plain, self.fields, (self.turns, self.reference)
        )
        require_exact_placeholders("task.schema_line", self.schema_line, ("table", "columns"))
        if self.answers is not None and self.later_turns != "fixed":
            raise UsageError(
                f"task.answers is a file for task.later_turns=fixed, not {self.later_turns}"
            )

    def read_examples(self, limit: int | None = None, offset: int = 0) -> list[Example]:
        """Reads at most ``limit`` rows after the first ``offset``, and fills the template. Raises
        ValueError for a missing file or field, an unknown split, no rows in that range, an example
        without an answer in the file of answers, or no consent to run code.
        """
        if RUNS_CODE in self.scores and not self.run_code:
            raise UsageError(
                f"the score {RUNS_CODE} runs what the model writes on this machine: "
                "task.run_code=true consents to that, task.metrics=[] leaves the score out"
            )
        shot_rows = self._read_worked_examples()
        shot_places = {
            row.place for row in shot_rows if self._worked_examples_source == self.source
        }
        rows = [
            (index, row)
            for index, row in self._load_selected_rows(limit, offset)
            if row.place not in shot_places
        ]
        if not rows:
            count = get_read_row_counts(self.source).total
            reason = f"{count} rows, none from offset {offset} on" if count else "no prompt"
            raise UsageError(f"task {self.name}: {self.data_label} has {reason}")
        shots = tuple(map(self._make_worked_example, shot_rows))
        examples = [replace(self._make_example(row, index), shots=shots) for index, row in rows]
        counts = Counter(prompt_id for example in examples for prompt_id in example.prompt_ids)
        if duplicates := sorted(prompt_id for prompt_id, count in counts.items() if count > 1):
            duplicate_ids = ", ".join(duplicates[:5])
            raise UsageError(
                f"task {self.name}: ids occur twice (of a row without one it is its place, from "
                f"0): {duplicate_ids}"
            )
        if self.answers is None:
            return examples
        answers = read_fastchat_answers(Path(self.answers).expanduser(), examples)
        return [replace(example, answers=answers[example.id]) for example in examples]

    @property
    def _worked_examples_source(self) -> RowSource:
        """Source of the worked examples."""
        if self.shots_from is not None:
            return RowSource(kind="local", path=self.shots_from)
        if self.source.kind != "hub" or self.source.hub is None or self.shots_split is None:
            return self.source
        files = self.source.hub.data_files
        shot_files = files and files.replace(self.source.hub.split, self.shots_split)
        hub = replace(self.source.hub, data_files=shot_files)
        return replace(self.source, hub=hub, split=self.shots_split)

    def _read_worked_examples(self) -> list[LocatedRow]:
        """Reads the rows of the worked examples. Raises UsageError if there are too few."""
        source = self._worked_examples_source
        if not self.shots:
            return []
        is_same_source = source == self.source
        rows = load_rows(
            source,
            self.name,
            None if is_same_source else self.shots,
            only_alternating=self._accepts_any_form,
        )
        if len(rows) < self.shots + is_same_source:
            raise UsageError(
                f"task.shots={self.shots}: {format_source_label(source, self.name)} has "
                f"{len(rows)} rows; "
                "task.shots_from=FILE has examples of your own"
            )
        return rows[-self.shots :] if is_same_source else rows

    def _make_worked_example(self, row: LocatedRow) -> tuple[str, str]:
        """Makes a worked example, (question, answer). Raises UsageError if there is no answer."""
        example = self._make_example(row, 0)
        if not example.references[0]:
            raise UsageError(f"task.shots={self.shots}: the example of {row.place} has no answer")
        return example.turns[0], example.references[0][0]

    def _load_selected_rows(self, limit: int | None, offset: int) -> list[tuple[int, LocatedRow]]:
        """Loads the rows that limit, offset and sampling select, in the order of the source, with
        their indices.
        """
        if self.sample == "first" and not self.answered_only:
            rows = load_rows(self.source, self.name, limit, offset, self._accepts_any_form)
            return list(enumerate(rows, offset))
        rows = load_rows(self.source, self.name, only_alternating=self._accepts_any_form)
        order = list(range(len(rows)))
        if self.answered_only and (name := self.reference) is not None:
            order = [i for i in order if look_up_field(rows[i], name, self.fields, default=None)]
        if self.sample == "random":
            order = Random(self.sample_seed).sample(order, len(order))
        selection = order[offset:] if limit is None else order[offset : offset + limit]
        return [(index, rows[index]) for index in sorted(selection)]

    def _make_example(self, row: LocatedRow, index: int) -> Example:
        """Makes an example from a row; ``index`` is its id if the row has none. Raises UsageError,
        with the row, if a field, a reference or the database is missing or wrong.
        """
        try:
            turns = self._make_turns(row)
            references = self._read_references(row, turns)
            identity = look_up_field(row, "id", self.fields, default=None)
            # A row may lack a category unless ``fields`` names its column.
            optional: dict[str, Any] = {} if "category" in self.fields else {"default": ""}
            category = look_up_field(row, "category", self.fields, **optional)
        except UsageError as error:
            raise UsageError(f"task {self.name}, {row.place}: {error}") from error
        if identity is None or len(self.source.paths) > 1:  # rows of several files may share ids
            identity = index
        name = str(identity)
        category_text = str(category) if type(category) in (str, int) else ""
        row_system = row.get("system") if self.source.kind == "local" else None
        system = (
            turns.system or (row_system if isinstance(row_system, str) else "") or self.system or ""
        )
        return Example(name, turns.questions, references, row, turns.answers, system, category_text)

    @property
    def _accepts_any_form(self) -> bool:
        """Whether rows may have any form: true for the user's own files, unless ``fields`` names
        the turns.
        """
        has_turns_field = isinstance(self.fields.get("turns"), str)
        return self.source.kind == "local" and self._turns_field == "turns" and not has_turns_field

    @property
    def _placeholder_names(self) -> set[str]:
        return {name for template in self.template for name in list_placeholders(template)}

    @property
    def _turns_field(self) -> str | None:
        """The field of the turns; None if no template has ``{turn}``."""
        return self.turns if "turn" in self._placeholder_names else None

    def _make_turns(self, row: Row, max_letters: int | None = None) -> ConversationTurns:
        """Makes the turns of a row by filling the template, with each text cut to ``max_letters``.
        Raises UsageError if a field is missing or holds no turns.
        """
        values = {
            name: cut_middle_of_text(
                self._read_schema(row)
                if name == "schema"
                else look_up_field(row, name, self.fields),
                max_letters,
            )
            for name in sorted(self._placeholder_names - {"turn"})
        }
        field = self._turns_field
        if field is None:
            return ConversationTurns(
                (
                    self._instruction_line
                    + fill_template(choose_template(self.template, values), values),
                )
            )
        if self._accepts_any_form and (name := find_prompt_field(row)):
            turns = read_turns(read_prompt(row), name)
        else:
            turns_fields = {"turns": PROMPT_FIELDS} if self._accepts_any_form else {}
            turns = read_turns(look_up_field(row, field, {**self.fields, **turns_fields}), field)
        stubs = [turn for turn in turns.questions if turn.startswith(self.placeholder or "\0")]
        if stubs:
            raise UsageError(
                f"the text is not there, only {format_value(stubs[0])}: what fetches it is named "
                f"in conf/task/{self.name}.yaml"
            )
        values_by_turn = [
            {**values, "turn": cut_middle_of_text(turn_text, max_letters)}
            for turn_text in turns.questions
        ]
        texts = [
            fill_template(choose_template(self.template, turn_values), turn_values)
            for turn_values in values_by_turn
        ]
        return replace(turns, questions=tuple(self._instruction_line + text for text in texts))

    def _read_references(self, row: Row, turns: ConversationTurns) -> tuple[tuple[str, ...], ...]:
        """Reads the reference answers of each turn. If the row lacks the field, its recorded
        answers are the references, provided that every turn has one.
        """
        count = len(turns.questions)
        if self.reference is None:
            return ((),) * count
        recorded_answers = turns.answers if len(turns.answers) == count else ()
        raw_references = look_up_field(row, self.reference, self.fields, default=recorded_answers)
        # Only the default field has substitutes.
        may_guess_field = self._accepts_any_form and self.reference == "reference"
        if raw_references == () and may_guess_field and (name := find_reference_field(row)):
            raw_references = [*[None] * (count - 1), row[name]]  # of the last turn
        references = read_references(raw_references, self.reference)
        if RUNS_SQL in self.scores:
            file = self._get_database_file(row)
            references = [
                tuple(SqlReference(answer, file) for answer in golds) for golds in references
            ]
        if RUNS_CODE in self.scores:
            code_parts = [
                str(look_up_field(row, name, self.fields)) for name in ("prompt", "entry_point")
            ]
            references = [
                tuple(ProgramTests(answer, *code_parts) for answer in golds) for golds in references
            ]
        if self._turns_field is None:
            return (tuple(gold for golds in references for gold in golds),)
        return (*references[:count], *[()] * (count - len(references)))

    def _read_schema(self, row: Row) -> str:
        """Reads the schema from the row's column, else from its database."""
        schema = look_up_field(row, "schema", self.fields, default=None)
        if schema is not None:
            return str(schema)
        return read_schema(self._get_database_file(row), self.schema_line)

    def _get_database_file(self, row: Row) -> Path:
        """Finds the row's database. Raises UsageError if there is no file or no ``db_id``."""
        return get_database_file(
            self.database_folder, str(look_up_field(row, "db_id", self.fields))
        )

    def cut_texts_to(self, example: Example, max_letters: int) -> Example:
        """Cuts every text of the example's row to ``max_letters``; see ``fit_to_context``."""
        return replace(example, turns=self._make_turns(example.row, max_letters).questions)

    def count_asked_turns(self, example: Example) -> int:
        """Counts the turns of an example that are asked. With ``later_turns`` ``fixed``, the first
        turn without a fixed answer is the last one asked.
        """
        turns = {
            "none": 1,
            "own": len(example.turns),
            "fixed": len(get_answers_or_references(example)) + 1,
        }
        return min(turns[self.later_turns], len(example.turns))

    def format_prompt(
        self, example: Example, turn: int = 0, history: Sequence[str] | None = None
    ) -> str:
        """Formats the plain-text prompt of a turn, counted from 0. ``history`` are the answers to
        the earlier turns; None takes the fixed ones (``answers``, else first references), so that
        every decoder continues the same conversation. Raises UsageError for an unknown turn, or an
        earlier turn without an answer.
        """
        role_templates = {
            "system": "{turn}\n",
            "user": self.plain,
            "assistant": " {turn}\n",
        }
        messages = self.list_messages(example, turn, history)
        return "".join(
            fill_template(role_templates[message["role"]], {"turn": message["content"]})
            for message in messages
        )

    def list_messages(
        self,
        example: Example,
        turn: int = 0,
        history: Sequence[str] | None = None,
    ) -> list[dict[str, str]]:
        """Lists the chat messages of a turn's prompt, up to the user's question; see
        ``format_prompt``.
        """
        answers = get_earlier_answers(self.name, example, turn, history)
        messages = [{"role": "system", "content": example.system}] if example.system else []
        for pair in example.shots:
            turns = zip(("user", "assistant"), pair, strict=True)
            messages += [{"role": role, "content": text} for role, text in turns]
        messages.append({"role": "user", "content": example.turns[0]})
        for answer, text in zip(answers, example.turns[1 : turn + 1], strict=True):
            messages.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": text})
        return messages

    def encode(
        self,
        example: Example,
        tokenizer: Any,
        turn: int = 0,
        history: Sequence[str] | None = None,
    ) -> tuple[int, ...]:
        """Encodes the prompt of a turn, with the tokenizer's special tokens. Raises ValueError like
        ``format_prompt`` and ``render_chat``.
        """
        if self.uses_chat_template(tokenizer):
            messages = self.list_messages(example, turn, history)
            text = render_chat(tokenizer, messages, remedy=_NO_TEMPLATE_REMEDY)
            # The chat template writes the special tokens itself.
            ids = encode_text(tokenizer, text, add_special_tokens=False)
        else:
            ids = encode_text(tokenizer, self.format_prompt(example, turn, history))
        return ids[: self.prompt_limit]

    def uses_chat_template(self, tokenizer: Any) -> bool:
        """Checks whether prompts use the tokenizer's chat template."""
        return self.chat is True or bool(self.chat and getattr(tokenizer, "chat_template", None))

    def encode_asked_turns_but_failing(
        self, examples: Sequence[Example], tokenizer: Any
    ) -> list[tuple[int, ...]]:
        """Encodes every turn of these examples that is asked, but those for which it fails; see
        ``encode_all_but_failing``.
        """
        asked_turns = [
            (example, turn)
            for example in examples
            for turn in range(self.count_asked_turns(example))
        ]
        return encode_all_but_failing(
            asked_turns, lambda pair: self.encode(pair[0], tokenizer, pair[1])
        )

    def describe_data(self, examples: Sequence[Example]) -> str:
        """Describes the data in one line: the numbers of prompts and of all rows, the prompts'
        form, the field of their references, and any peculiarity.
        """
        forms = ""
        count = len(examples)
        if self._accepts_any_form:
            forms = ", ".join(dict.fromkeys(find_prompt_field(example.row) for example in examples))
        total, left_out = get_read_row_counts(self.source)
        prompt_count = sum(map(self.count_asked_turns, examples))
        kind = "conversation" if forms in CHAT_FIELDS or prompt_count > count else "prompt"
        systems = sum(bool(example.system) for example in examples)
        with_references = [example for example in examples if any(example.references)]
        count_note = f" ({len(with_references)})" * (len(with_references) < count)
        duplicate_count = count - len(
            {(example.turns, example.answers, example.system) for example in examples}
        )
        parts = [
            f"{count}{f' of {total}' * (total > count)} {kind}{'s' * (total > 1)}",
            f" ({forms})" * bool(forms),
            f", {prompt_count} prompts" * (prompt_count != count),
            f"; {systems} with a system's text" * bool(systems),
            f"; of rows up to here {left_out} left out, whose speakers do not take turns"
            * bool(left_out),
            f"; references: {self._find_reference_field(with_references[0])}{count_note}"
            if with_references
            else "",
            f"; {duplicate_count} repeat another's text" * bool(duplicate_count),
            f"; {self.shots} worked examples before each" * bool(self.shots),
        ]
        for name in sorted(_TOPIC_FIELDS & {*examples[0].row}):
            topics = len({str(example.row.get(name)) for example in examples})
            parts.append(f"; of {topics} {name} alone" * (topics < count / _QUESTIONS_PER_TOPIC))
        for name in list_placeholders(self.template[-1]):
            values = [
                look_up_field(example.row, name, self.fields, default="-") for example in examples
            ]
            if empty := sum(str(value or "").strip() == "" for value in values):
                parts.append(f"; {empty} with nothing in {{{name}}}")
        if self.name == "jsonl" and {"question_id", "category", "turns"} <= {*examples[0].row}:
            parts.append("; rows like Spec-Bench's, which --task spec_bench asks in its way")
        return f"{self.data_label}: {''.join(parts)}"

    def _find_reference_field(self, example: Example) -> str:
        """Returns the name of the field with an example's references."""
        if look_up_field(example.row, self.reference or "", self.fields, default=None) is not None:
            return self.reference or ""
        if len(example.answers) == len(example.turns):
            return "the last answers"
        return find_reference_field(example.row)

    def make_stop_criteria(self, tokenizer: Any) -> StopCriteria:
        """Returns the criteria that end an answer before its limit."""
        return StopCriteria(tokenizer, self.stop)

    @property
    def data_label(self) -> str:
        """Label of the rows' source, the same on every machine."""
        label = format_source_label(self.source, self.name)
        label += ", answered questions only" if self.answered_only else ""
        return f"{label}, instructed" if self._instruction_line else label

    @property
    def _instruction_line(self) -> str:
        """The setting ``instruction`` with a line break, before every prompt; "" if it is not set
        or the sample is embedded.
        """
        applies = self.instruction is not None and self.source.kind != "embedded"
        return f"{self.instruction}\n" if applies else ""

    @property
    def data_revision(self) -> str:
        """Commit of the hub's dataset once ``read_examples`` has read it; "" for other sources."""
        return get_commit_of_read_dataset(self.source)

    def extract_scored_text(self, text: str) -> str:
        """Extracts the answer from a decoded text: cuts it at the first stop text or end of the
        scored part, and strips it.
        """
        return cut_at_stop(text.lstrip(), (*self.stop, *self.score_until)).strip()

    @property
    def database_folder(self) -> Path:
        """Folder of the databases: the configured one, else next to the rows, else the hub's
        archive. Raises UsageError if the hub has none.
        """
        if self.database is not None:
            return Path(self.database).expanduser()
        if self.source.kind == "embedded":
            return EMBEDDED_SAMPLES / self.name / "database"
        if self.source.kind == "local" and self.source.paths:
            path = Path(self.source.paths[0]).expanduser()
            return (path if path.is_dir() else path.parent) / "database"
        if self.databases is None:
            raise UsageError(
                "the hub has no databases; set task.database to the folder that holds them"
            )
        return fetch_archive(self.databases)
