"""``python -m spec_bench``: runs a job or a sweep of jobs; see ``conf/config.yaml``."""

from __future__ import annotations


def main() -> None:
    """The console script ``spec-bench``."""
    from spec_bench.run.app import main as run

    run()


if __name__ == "__main__":
    main()
