"""Tables, figures, claims and pages from measured results.

Each after ``python -m spec_bench.report``:

  list rsd              what is measured of the paper, and what would run the rest
  table rsd/7           a table, the paper's numbers and ours side by side
  figure rsd/4          a figure from our rows
  checks rsd            what the paper claims, checked on our rows
  page rsd-exp1         one HTML page of an experiment
  all                   all of these beside each results.csv, and index.html
  records               how much the records beside each results.csv hold
  lengths NAME          acceptance lengths as vLLM, SGLang and SPEED-Bench count them
  positions NAME        tokens per call by where in the text a call stands, by powers of two
  throughput NAME       tokens/s of one and of all by requests together, where drafting stops paying
  sweep NAME            a page to explore any experiment
  answers FILE ...      answer files of other harnesses as rows of an experiment
  wandb --project NAME  a W&B report of a project's runs
  NAME/results.csv      a results file of any experiment: its table, figure and checks

Papers are the folders below experiments/, experiments those below results/. A wrong name lists
the known ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from spec_bench.report.cli import subcommands
from spec_bench.settings.arguments import Parser, output_file, output_folder

COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], None], str]] = {
    "list": (subcommands.run_list, "tables and figures: measured, missing, and how to run them"),
    "table": (subcommands.run_table, "a paper's table"),
    "figure": (subcommands.run_figure, "a paper's figure"),
    "checks": (subcommands.run_checks, "a paper's claims"),
    "page": (subcommands.run_page, "one HTML page of an experiment"),
    "all": (subcommands.run_all, "every page, table and figure, and an index of them"),
    "records": (subcommands.run_records, "what the records beside each table hold, and their size"),
    "throughput": (subcommands.run_throughput, "speed of a request against that of all, drawn"),
    "lengths": (subcommands.run_lengths, "acceptance as vLLM, SGLang and SPEED-Bench count it"),
    "positions": (subcommands.run_positions, "tokens per call by where in the text it stands"),
    "sweep": (subcommands.run_sweep, "a page to explore: what to use, interactive figures"),
    "answers": (subcommands.run_answers, "answer files of Spec-Bench, EAGLE or Medusa as rows"),
    "wandb": (subcommands.run_wandb, "a W&B report of a project; --dry-run needs no account"),
    "results": (subcommands.run_plain, "a results file's own table, figure and checks"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; 2 and one line where the request cannot be right."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and (given[0].endswith(".csv") or Path(given[0]).is_file()):
        given.insert(0, "results")
    options = _parser().parse_args(given)
    try:
        options.run(options)
    except ValueError as error:
        print(f"spec_bench.report: {error}", file=sys.stderr)
        return 2
    return 0


# Each command's output, and its default.
_OUTPUTS = {
    "table": ("FILE", "print it"),
    "figure": ("FOLDER", "figures in the results folder"),
    "page": ("FILE", "beside it"),
    "results": ("FOLDER", "beside it"),
    "sweep": ("FILE", "beside it"),
}


def _parser() -> argparse.ArgumentParser:
    summary, _, rest = str(__doc__).replace("``", "").partition("\n")
    parser = Parser(
        prog="python -m spec_bench.report",
        description=summary,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parsers = parser.add_subparsers(
        required=True, title="commands", metavar="COMMAND", parser_class=Parser
    )
    made = {}
    for name, (run, text) in COMMANDS.items():
        made[name] = parsers.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}."
        )
        made[name].set_defaults(run=run)

    made["list"].add_argument("paper", nargs="?", help="such as rsd; default: all papers")
    for name in ("table", "figure"):
        made[name].add_argument("name", help="PAPER/NUMBER, such as rsd/7")
    made["table"].add_argument(
        "--format", choices=sorted(subcommands.FORMATS), default="markdown", help="of the table"
    )
    made["checks"].add_argument("paper", help="such as rsd")
    made["page"].add_argument("name", help="an experiment, such as rsd-exp1, or a results.csv")
    for name in ("all", "records"):
        made[name].add_argument(
            "names", nargs="*", metavar="NAME", help="experiments; default: all"
        )
    made["records"].add_argument(
        "--seal", action="store_true", help="give files of earlier versions a digest, as they are"
    )
    made["results"].add_argument("file", type=Path, metavar="FILE", help="a results.csv")
    for name in ("sweep", "lengths", "positions", "throughput"):
        made[name].add_argument("name", help="an experiment, or a results.csv")
    for name, (kind, usual) in _OUTPUTS.items():
        output_kind = output_file if kind == "FILE" else output_folder
        usual = f"default: {usual}"
        made[name].add_argument("--output", type=output_kind, metavar=kind, help=usual)
    _add_answers(made["answers"])
    _add_wandb(made["wandb"])

    _add_rows(made)
    return parser


def _add_rows(made: Mapping[str, argparse.ArgumentParser]) -> None:
    """Options that select the rows of a command."""
    for name in COMMANDS.keys() - {"results"}:
        made[name].add_argument(
            "--results", type=Path, default=Path("results"), metavar="FOLDER", help="all results"
        )
    for name in ("list", "table", "figure", "page"):
        made[name].add_argument(
            "--pair", help="rows of this pair of models; default: the paper's own pairs"
        )


def _add_answers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a decoder's answers")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="plain decoding's answers")
    parser.add_argument("--harness", required=True, help="whose files they are, such as eagle")
    parser.add_argument("--name", required=True, help="of the experiment to write")
    parser.add_argument("--task", default="spec_bench", help="the questions (default: spec_bench)")
    parser.add_argument("--pair", default="", help="the models (default: as the files say)")
    parser.add_argument("--temperature", type=float, default=0.0, help="default: 0")
    parser.add_argument(
        "--questions", type=Path, metavar="FILE", help="question.jsonl with their categories"
    )


def _add_wandb(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--project", default="spec_bench", help="default: spec_bench")
    parser.add_argument("--entity", help="the account or team; default: the account's own")
    parser.add_argument("--task", default="", help="such as xsum; default: all tasks")
    parser.add_argument(
        "--dry-run",
        type=output_file,
        metavar="FILE",
        help="write the report's spec here and publish nothing",
    )
