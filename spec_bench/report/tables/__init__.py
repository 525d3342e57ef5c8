"""The papers' tables: printed numbers and measured ones, laid out as the paper has them."""
