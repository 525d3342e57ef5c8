"""A task: rows from a source, a prompt template, a stop rule, references and scores.

Knows text and token ids; nothing about models or about how scores are computed (``scores`` are
names). A tokenizer is anything that behaves like one of ``transformers``.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from spec_bench.records.ends import StopCriteria, cut_at_stop
from spec_bench.records.types import CodeReference, SqlReference
from spec_bench.settings.fields import format_value
from spec_bench.settings.validation import (
    Allowed,
    Ge,
    MinLen,
    NonEmptyStr,
    StrictBool,
    StrictInt,
    settings,
)
from spec_bench.system.errors import UsageError
from spec_bench.tasks.example import (
    ConversationTurns,
    Example,
    get_fixed_answers,
    get_history,
    read_answers,
    read_references,
    read_turns,
    truncate_text,
)
from spec_bench.tasks.generation import GenerationSettings
from spec_bench.tasks.prompt_files import (
    ASKING,
    CHATS,
    LocatedRow,
    Row,
    find_prompt_field,
    find_reference_field,
    read_prompt,
)
from spec_bench.tasks.source import (
    EMBEDDED,
    Archive,
    Source,
    count_rows,
    fetch_archive,
    format_label,
    get_commit,
    load_rows,
)
from spec_bench.tasks.spider import SCHEMA_LINE, database_file, schema_text
from spec_bench.tasks.template import (
    TEMPLATE,
    chat_text,
    check_names,
    check_templates,
    choose_template,
    encode_each,
    fill_template,
    look_up,
    placeholders,
    token_ids,
)

RUNS_SQL = "execution_accuracy"  # the score that asks the row's database
_TOPICS = {"title", "db_id"}  # what many questions of a data set may share
_MANY = 10  # questions of a topic from which on prompts are said to be of few
_PLAINLY = "set pair.chat_template, or task.chat to auto or false"
RUNS_CODE = "pass_at_1"  # the score that runs the row's tests


def _or_empty(value: Any) -> Any:
    """Null as an empty mapping."""
    return {} if value is None else value


Texts = Annotated[
    tuple[NonEmptyStr, ...],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    Allowed("a text or a list of texts, none of them empty"),
]


@settings
class Task:
    """What ``conf/task/*.yaml`` describes; ``build_task`` makes one."""

    name: NonEmptyStr  # the task's name
    source: Source  # where the rows come from
    # text of one turn with ``{field}`` in it; of several templates the first whose fields are all
    # filled is used (an optional context).
    template: Annotated[Texts, MinLen(1), Allowed(TEMPLATE)]
    # name in the template -> column or path into columns; ``id`` and ``category`` need no template
    fields: Annotated[
        dict[str, NonEmptyStr | tuple[NonEmptyStr, ...]], BeforeValidator(_or_empty)
    ] = field(default_factory=dict)
    # a field that holds a list of turns, one text, or a list of chat messages (see ``read_turns``);
    # the template then says ``{turn}``. A template that does not makes one turn of the row.
    turns: NonEmptyStr | None = None
    # the field that holds the reference answer, a text or a list of several (with ``turns``: one
    # per turn); None where there is none.
    reference: NonEmptyStr | None = None
    # True: the tokenizer's chat template; False: plain text; ``auto``: the chat template where the
    # tokenizer has one.
    chat: Literal["auto", True, False] = False
    # one turn as plain text, with ``{turn}``, for tokenizers without a chat template
    plain: NonEmptyStr = "{turn}"
    stop: Texts = ()  # texts that end an answer
    score_until: Texts = ()  # texts before which what is scored ends; decoding goes on behind them
    # worked examples before every question: so many rows of a file (``shots_from``), of another of
    # the dataset's splits (``shots_split``), or else the source's last rows, not asked then.
    shots: Annotated[StrictInt, Ge(0)] = 0
    shots_from: NonEmptyStr | None = None
    shots_split: NonEmptyStr | None = None
    # tokens of a prompt, at most: what is behind them is dropped, be it the question
    prompt_limit: Annotated[StrictInt, Ge(1)] | None = None
    # names of quality metrics, or metric modules of ``evaluate`` by path or hub id
    scores: Texts = ()
    metrics: Texts | None = None  # the same; where they are given, ``scores`` become these
    # how BLEU and ROUGE find words, by sacrebleu's name: zh, ja-mecab, char, intl, ...; None: each
    # its own way, for texts with blanks and, of ROUGE, in Latin letters
    tokenize: NonEmptyStr | None = None
    # this task's defaults for what the run leaves open: max_new_tokens, and the papers'
    # temperature, top_k and top_p
    generation: Annotated[GenerationSettings, BeforeValidator(_or_empty)] = field(
        default_factory=GenerationSettings
    )
    schema_line: NonEmptyStr = (
        SCHEMA_LINE  # a table in ``{schema}``; its names stand between commas
    )
    # folder with ``<db_id>/<db_id>.sqlite``, from which ``{schema}`` in a template is read and
    # which execution accuracy asks; None: beside the rows.
    database: NonEmptyStr | None = None
    # the hub's archive of such a folder, for rows that come from the hub
    databases: Archive | None = None
    # what turns after the first continue: ``fixed``, the same given answers whoever decodes;
    # ``own``, the decoder's; ``none``: they are not asked.
    later_turns: Literal["fixed", "own", "none"] = "fixed"
    # for ``fixed``: a file of answers (see ``read_answers``) that later turns continue; None: the
    # references.
    answers: NonEmptyStr | None = None
    # whether FastChat's judge grades the answers: ``spec-bench answers`` writes the questions, too
    judged: StrictBool = False
    # what becomes of a prompt that the models have no room for (see ``fitted``)
    overlong: Literal["fail", "truncate", "skip"] = "fail"
    # which rows a limit takes, the first or a random choice
    sample: Literal["first", "random"] = "first"
    # of the choice; seeds of the draws leave the prompts as they are
    sample_seed: Annotated[StrictInt, Ge(0)] = 0
    # a line before the template in every prompt; not with the embedded sample, whose models know
    # none.
    instruction: NonEmptyStr | None = None
    # what the system says before every conversation that has no system message of its own
    system: NonEmptyStr | None = None
    # what a turn begins with where its text has to be fetched first; such rows are refused
    placeholder: NonEmptyStr | None = None
    answered_only: StrictBool = False  # whether rows without a reference answer are left out
    run_code: StrictBool = False  # consent to a score that runs what a model wrote

    def __post_init__(self) -> None:
        if self.metrics is not None:
            object.__setattr__(self, "scores", self.metrics)
        if twice := [name for name, count in Counter(self.scores).items() if count > 1]:
            raise UsageError(f"task.scores names {twice[0]} twice")
        check_templates(self.template, self.plain, self.fields, (self.turns, self.reference))
        check_names("task.schema_line", self.schema_line, ("table", "columns"))
        if self.answers is not None and self.later_turns != "fixed":
            raise UsageError(
                f"task.answers is a file for task.later_turns=fixed, not {self.later_turns}"
            )

    def examples(self, limit: int | None = None, offset: int = 0) -> list[Example]:
        """Reads the rows, ``limit`` at most behind the first ``offset``, and fills the template.
        Raises ValueError: missing file or field, unknown split, no rows in that range, an example
        without an answer in the file of answers, or no consent to run code.
        """
        if RUNS_CODE in self.scores and not self.run_code:
            raise UsageError(
                f"the score {RUNS_CODE} runs what the model writes on this machine: "
                "task.run_code=true consents to that, task.metrics=[] leaves the score out"
            )
        worked = self._read_worked_examples()
        held = {row.place for row in worked if self._shots_source == self.source}
        rows = [each for each in self._rows(limit, offset) if each[1].place not in held]
        if not rows:
            count = count_rows(self.source)[0]
            none = f"{count} rows, none from offset {offset} on" if count else "no prompt"
            raise UsageError(f"task {self.name}: {self.data_file} has {none}")
        shots = tuple(map(self._shot, worked))
        examples = [replace(self._example(row, index), shots=shots) for index, row in rows]
        counts = Counter(prompt_id for example in examples for prompt_id in example.prompt_ids)
        if twice := sorted(prompt_id for prompt_id, count in counts.items() if count > 1):
            raise UsageError(f"task {self.name}: ids occur twice: {', '.join(twice[:5])}")
        if self.answers is None:
            return examples
        given = read_answers(Path(self.answers).expanduser(), examples)
        return [replace(example, answers=given[example.id]) for example in examples]

    @property
    def _shots_source(self) -> Source:
        """Where worked examples are read."""
        if self.shots_from is not None:
            return Source(kind="local", path=self.shots_from)
        if self.source.kind != "hub" or self.source.hub is None or self.shots_split is None:
            return self.source
        files = self.source.hub.data_files
        moved = files and files.replace(self.source.hub.split, self.shots_split)
        hub = replace(self.source.hub, data_files=moved)
        return replace(self.source, hub=hub, split=self.shots_split)

    def _read_worked_examples(self) -> list[LocatedRow]:
        """Reads the rows of the worked examples. Raises ValueError: there are not so many."""
        source = self._shots_source
        if not self.shots:
            return []
        own = source == self.source
        rows = load_rows(source, self.name, None if own else self.shots, asks=self._any_form)
        if len(rows) < self.shots + own:
            raise UsageError(
                f"task.shots={self.shots}: {format_label(source, self.name)} has {len(rows)} rows; "
                "task.shots_from=FILE has examples of your own"
            )
        return rows[-self.shots :] if own else rows

    def _shot(self, row: LocatedRow) -> tuple[str, str]:
        """What a worked example asks, and its answer. Raises ValueError: it has none."""
        example = self._example(row, 0)
        if not example.references[0]:
            raise UsageError(f"task.shots={self.shots}: the example of {row.place} has no answer")
        return example.turns[0], example.references[0][0]

    def _rows(self, limit: int | None, offset: int) -> list[tuple[int, LocatedRow]]:
        """Returns the rows that are asked, with their places in the source and in that order."""
        if self.sample == "first" and not self.answered_only:
            rows = load_rows(self.source, self.name, limit, offset, self._any_form)
            return list(enumerate(rows, offset))
        rows = load_rows(self.source, self.name, asks=self._any_form)
        order = list(range(len(rows)))
        if self.answered_only and (name := self.reference) is not None:
            order = [i for i in order if look_up(rows[i], name, self.fields, default=None)]
        if self.sample == "random":
            order = Random(self.sample_seed).sample(order, len(order))
        taken = order[offset:] if limit is None else order[offset : offset + limit]
        return [(index, rows[index]) for index in sorted(taken)]

    def _example(self, row: LocatedRow, index: int) -> Example:
        """The example that a row makes; its place in the source is its id where it has none. Raises
        ValueError: a field, a reference or the database is missing or of no use; the message says
        which row.
        """
        try:
            turns = self._turns(row)
            golds = self._golds(row, turns)
            identity = look_up(row, "id", self.fields, default=None)
            # It need not be there where ``fields`` does not name its place.
            optional: dict[str, Any] = {} if "category" in self.fields else {"default": ""}
            category = look_up(row, "category", self.fields, **optional)
        except UsageError as error:
            raise UsageError(f"task {self.name}, {row.place}: {error}") from error
        if identity is None or len(self.source.paths) > 1:  # whose rows may share ids
            identity = index
        name = str(identity)
        kind = str(category) if type(category) in (str, int) else ""
        said = row.get("system") if self.source.kind == "local" else None
        system = turns.system or (said if isinstance(said, str) else "") or self.system or ""
        return Example(name, turns.asked, golds, row, turns.answers, system, kind)

    @property
    def _any_form(self) -> bool:
        """Whether rows ask in whatever form they have: files of the user's own, unless the user
        says where turns stand.
        """
        named = isinstance(self.fields.get("turns"), str)
        return self.source.kind == "local" and self._turns_field == "turns" and not named

    @property
    def _names(self) -> set[str]:
        return {name for template in self.template for name in placeholders(template)}

    @property
    def _turns_field(self) -> str | None:
        """Where the turns stand; None where no template asks for one."""
        return self.turns if "turn" in self._names else None

    def _turns(self, row: Row, most: int | None = None) -> ConversationTurns:
        """What the row asks, with the template filled in, each of its texts cut to so many letters.
        Raises ValueError: a field is missing, or holds no turns.
        """
        values = {
            name: truncate_text(
                self._schema(row) if name == "schema" else look_up(row, name, self.fields), most
            )
            for name in sorted(self._names - {"turn"})
        }
        field = self._turns_field
        if field is None:
            return ConversationTurns(
                (self._instruction + fill_template(choose_template(self.template, values), values),)
            )
        if self._any_form and (name := find_prompt_field(row)):
            turns = read_turns(read_prompt(row), name)
        else:
            more = {"turns": ASKING} if self._any_form else {}
            turns = read_turns(look_up(row, field, {**self.fields, **more}), field)
        missing = [each for each in turns.asked if each.startswith(self.placeholder or "\0")]
        if missing:
            raise UsageError(
                f"the text is not there, only {format_value(missing[0])}: what fetches it is named "
                f"in conf/task/{self.name}.yaml"
            )
        filled = [{**values, "turn": truncate_text(asked, most)} for asked in turns.asked]
        texts = [fill_template(choose_template(self.template, one), one) for one in filled]
        return replace(turns, asked=tuple(self._instruction + text for text in texts))

    def _golds(self, row: Row, turns: ConversationTurns) -> tuple[tuple[str, ...], ...]:
        """Reference answers per turn; a recorded answer to the last turn stands in for none."""
        count = len(turns.asked)
        if self.reference is None:
            return ((),) * count
        recorded = turns.answers if len(turns.answers) == count else ()
        given = look_up(row, self.reference, self.fields, default=recorded)
        usual = self._any_form and self.reference == "reference"  # another field is that alone
        if given == () and usual and (name := find_reference_field(row)):
            given = [*[None] * (count - 1), row[name]]  # of the last turn
        references = read_references(given, self.reference)
        if RUNS_SQL in self.scores:
            file = self._database(row)
            references = [tuple(SqlReference(each, file) for each in golds) for golds in references]
        if RUNS_CODE in self.scores:
            around = [str(look_up(row, name, self.fields)) for name in ("prompt", "entry_point")]
            references = [
                tuple(CodeReference(each, *around) for each in golds) for golds in references
            ]
        if self._turns_field is None:
            return (tuple(gold for golds in references for gold in golds),)
        return (*references[:count], *[()] * (count - len(references)))

    def check_references(self, score: str, examples: Sequence[Example], empty: bool) -> str:
        """Returns a note on the turns that a score leaves out, which have no reference; "" where
        all have one. With ``empty`` each row needs the field, whatever it holds. Raises ValueError:
        no turn has one, or a row lacks the field; says where.
        """
        field = self.reference or "FIELD"
        count = 0
        bare = []
        for example in examples:
            there = look_up(example.meta, field, self.fields, default=example) is not example
            count += self.asked(example)
            lacking = (t for t in range(self.asked(example)) if not example.references[t])
            bare += [(example, t, there) for t in lacking if not (empty and there)]
        if not bare:
            return ""
        example, turn, there = bare[0]
        row = example.meta
        turns = 1 if self.later_turns == "none" else len(example.turns)
        where = row.place if isinstance(row, LocatedRow) else ""
        where += f", turn {turn + 1}" * (turns > 1) + f" (and {len(bare) - 1} more)" * (
            len(bare) > 1
        )
        if len(bare) < count and not empty:
            scored = f"{count - len(bare)} of {count} answers are scored"
            return f"{score}: {scored}; {where} has no reference"
        ways = [
            f"give {f'a list of {turns}' if turns > 1 else 'one'} in {field!r}",
            "" if there else f"task.reference=FIELD (the row has {', '.join(row)})",
            "task.later_turns=none asks first turns alone" if turn else "",
            "task.metrics=[] leaves the score out",
            "a function compute(predictions) needs none" if score.endswith(".py") else "",
        ]
        told = ", or ".join(filter(None, ways))
        raise UsageError(f"{self.data_file}, {where} has no reference for {score}: {told}")

    def _schema(self, row: Row) -> str:
        """Returns the schema of the row's database, unless the row brings it as a column."""
        given = look_up(row, "schema", self.fields, default=None)
        if given is not None:
            return str(given)
        return schema_text(self._database(row), self.schema_line)

    def _database(self, row: Row) -> Path:
        """Returns the row's database. Raises ValueError: no such file, or no ``db_id``."""
        return database_file(self.database_folder, str(look_up(row, "db_id", self.fields)))

    def cut_to(self, example: Example, most: int) -> Example:
        """An example with every text that its row fills in cut to so many letters (``fitted``)."""
        return replace(example, turns=self._turns(example.meta, most).asked)

    def asked(self, example: Example) -> int:
        """Returns how many of an example's turns are asked: of ``fixed`` ones those before which
        all have a fixed answer.
        """
        turns = {"none": 1, "own": len(example.turns), "fixed": len(get_fixed_answers(example)) + 1}
        return min(turns[self.later_turns], len(example.turns))

    def prompt(self, example: Example, turn: int = 0, history: Sequence[str] | None = None) -> str:
        """The plain text that asks for the answer to a turn, counted from 0, after those to the
        earlier ones. None takes the fixed ones (``answers``, else first references), so that every
        decoder continues the same conversation. Raises ValueError: no such turn, or an earlier one
        without an answer.
        """
        written = {"system": "{turn}\n", "user": self.plain, "assistant": " {turn}\n"}
        messages = self.messages(example, turn, history)
        return "".join(
            fill_template(written[each["role"]], {"turn": each["content"]}) for each in messages
        )

    def messages(
        self, example: Example, turn: int = 0, history: Sequence[str] | None = None
    ) -> list[dict[str, str]]:
        """Returns the same as a list of chat messages, the last one the user's; see ``prompt``."""
        answers = get_history(self.name, example, turn, history)
        messages = [{"role": "system", "content": example.system}] if example.system else []
        for pair in example.shots:
            said = zip(("user", "assistant"), pair, strict=True)
            messages += [{"role": role, "content": text} for role, text in said]
        messages.append({"role": "user", "content": example.turns[0]})
        for answer, text in zip(answers, example.turns[1 : turn + 1], strict=True):
            messages.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": text})
        return messages

    def encode(
        self, example: Example, tokenizer: Any, turn: int = 0, history: Sequence[str] | None = None
    ) -> tuple[int, ...]:
        """Token ids of the prompt, with the special tokens that the tokenizer puts before a text.
        Raises ValueError: as ``prompt`` or ``chat_text``.
        """
        if self.chats(tokenizer):
            messages = self.messages(example, turn, history)
            text = chat_text(tokenizer, messages, otherwise=_PLAINLY)
            # The chat template writes the special tokens itself.
            ids = token_ids(tokenizer, text, add_special_tokens=False)
        else:
            ids = token_ids(tokenizer, self.prompt(example, turn, history))
        return ids[: self.prompt_limit]

    def chats(self, tokenizer: Any) -> bool:
        """Returns whether prompts go through the tokenizer's chat template."""
        return self.chat is True or bool(self.chat and getattr(tokenizer, "chat_template", None))

    def encode_all(self, examples: Sequence[Example], tokenizer: Any) -> list[tuple[int, ...]]:
        """Returns token ids of every turn that is asked of these examples (``encode_each``)."""
        asked = [(example, turn) for example in examples for turn in range(self.asked(example))]
        return encode_each(asked, lambda each: self.encode(each[0], tokenizer, each[1]))

    def describe_data(self, examples: Sequence[Example]) -> str:
        """Returns in one line what was read: how many prompts, of how many, in which form, and
        where their references stand.
        """
        forms = ""
        count = len(examples)
        if self._any_form:
            forms = ", ".join(dict.fromkeys(find_prompt_field(each.meta) for each in examples))
        total, left_out = count_rows(self.source)
        asked = sum(map(self.asked, examples))
        kind = "conversation" if forms in CHATS or asked > count else "prompt"
        systems = sum(bool(each.system) for each in examples)
        answered = [each for each in examples if any(each.references)]
        few = f" ({len(answered)})" * (len(answered) < count)
        same = count - len({(each.turns, each.answers, each.system) for each in examples})
        said = [
            f"{count}{f' of {total}' * (total > count)} {kind}{'s' * (total > 1)}",
            f" ({forms})" * bool(forms),
            f", {asked} prompts" * (asked != count),
            f"; {systems} with a system's text" * bool(systems),
            f"; of rows up to here {left_out} left out, whose speakers do not take turns"
            * bool(left_out),
            f"; references: {self._find_reference_place(answered[0])}{few}" if answered else "",
            f"; {same} repeat another's text" * bool(same),
            f"; {self.shots} worked examples before each" * bool(self.shots),
        ]
        for name in sorted(_TOPICS & {*examples[0].meta}):
            topics = len({str(each.meta.get(name)) for each in examples})
            said.append(f"; of {topics} {name} alone" * (topics < count / _MANY))
        for name in placeholders(self.template[-1]):
            values = [look_up(each.meta, name, self.fields, default="-") for each in examples]
            if empty := sum(str(value or "").strip() == "" for value in values):
                said.append(f"; {empty} with nothing in {{{name}}}")
        if self.name == "jsonl" and {"question_id", "category", "turns"} <= {*examples[0].meta}:
            said.append("; rows like Spec-Bench's, which --task spec_bench asks in its way")
        return f"{self.data_file}: {''.join(said)}"

    def _find_reference_place(self, example: Example) -> str:
        """Where an example's references stand."""
        if look_up(example.meta, self.reference or "", self.fields, default=None) is not None:
            return self.reference or ""
        if len(example.answers) == len(example.turns):
            return "the last answers"
        return find_reference_field(example.meta)

    def ends(self, tokenizer: Any) -> StopCriteria:
        """Returns what ends an answer before its limit."""
        return StopCriteria(tokenizer, self.stop)

    @property
    def data_file(self) -> str:
        """What the rows were read from, the same on every machine."""
        label = format_label(self.source, self.name)
        label += ", answered questions only" if self.answered_only else ""
        return f"{label}, instructed" if self._instruction else label

    @property
    def _instruction(self) -> str:
        """The line before the template, with its end; "" where there is none."""
        known = self.instruction is not None and self.source.kind != "embedded"
        return f"{self.instruction}\n" if known else ""

    @property
    def data_revision(self) -> str:
        """The commit of the dataset, once ``examples`` has read it; "" where it has none."""
        return get_commit(self.source)

    def postprocess(self, text: str) -> str:
        """The answer in a decoded text: cut at the first stop text, or where what is scored ends,
        blanks at the ends removed.
        """
        return cut_at_stop(text.lstrip(), (*self.stop, *self.score_until)).strip()

    @property
    def database_folder(self) -> Path:
        """Where the databases lie: as configured, else beside the rows. Raises ValueError: the rows
        come from the hub, and the databases cannot be had from there.
        """
        if self.database is not None:
            return Path(self.database).expanduser()
        if self.source.kind == "embedded":
            return EMBEDDED / self.name / "database"
        if self.source.kind == "local" and self.source.paths:
            path = Path(self.source.paths[0]).expanduser()
            return (path if path.is_dir() else path.parent) / "database"
        if self.databases is None:
            raise UsageError(
                "the hub has no databases; set task.database to the folder that holds them"
            )
        return fetch_archive(self.databases)
