"""Records of what is measured: dataclasses, a cell's JSONL, an experiment's parquet.

Knows only ``system`` of the package; pyarrow is loaded only to read or write a file.
"""
