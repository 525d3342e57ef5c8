"""What starting the command line imports, and what it leaves behind."""

import subprocess
import sys


def test_a_job_starts_without_what_only_reports_scores_or_sources_need():
    heavy = ["nltk", "pandas", "datasets", "evaluate", "wandb", "matplotlib"]
    code = (
        "import gc, sys; from spec_bench.__main__ import application; application();"
        f"assert gc.isenabled(); print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
