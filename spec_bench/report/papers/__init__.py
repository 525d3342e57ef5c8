"""The papers' tables again: printed numbers, measured ones beside them, in the papers' layout."""
