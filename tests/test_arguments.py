"""A wrong option is one line, whichever command has it."""

import pytest

from spec_bench.audit.__main__ import load as audit
from spec_bench.exchange.write import main as answers
from spec_bench.report.comparison import main as compare


@pytest.mark.parametrize(
    ("command", "given", "words"),
    [
        (audit, ["--target", "folder"], ("spec_bench.audit: ", "--draft")),
        (compare, ["one"], ("spec-bench compare: ", "required")),
        (answers, [], ("spec-bench answers: ", "FILE")),
    ],
)
def test_a_wrong_request_is_one_line_without_the_usage(command, given, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        command(given)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(words[0]) and words[1] in line
