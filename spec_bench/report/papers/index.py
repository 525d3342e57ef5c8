"""Other names of ``spec_bench.report.paper``."""

from spec_bench.report.paper import (
    Figure,
    Item,
    Kind,
    Paper,
    Table,
    find_item,
    load_paper,
    paper_names,
    recipe_cells,
    recipe_name,
    recipes_by_name,
)

__all__ = [
    "Figure",
    "Item",
    "Kind",
    "Paper",
    "Table",
    "find_item",
    "load_paper",
    "paper_names",
    "recipe_cells",
    "recipe_name",
    "recipes_by_name",
]
