"""Records of measurements: dataclasses, a cell's JSONL, an experiment's parquet.

Knows only ``settings`` and ``system`` of the package; imports pyarrow only to read or write a file.
"""
