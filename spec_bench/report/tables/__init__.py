"""The papers' tables: printed and measured numbers, laid out as in the paper."""
