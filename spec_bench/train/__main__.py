"""``python -m spec_bench.train``: trains draft heads; see ``conf/train.yaml``."""

from __future__ import annotations

from spec_bench.train.app import main

if __name__ == "__main__":
    main()
