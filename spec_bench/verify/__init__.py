"""Who decides: node rules (pure functions) and the walk over the tree. Imports core only."""
