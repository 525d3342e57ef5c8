"""What is measured, and how it is kept: the dataclasses, a cell's JSONL, an experiment's parquet.

Knows ``system`` and nothing else of the package; pyarrow is loaded where a file is read or written.
"""
