"""Names: columns and their definitions, titles of decoders and tasks, trees' shorthand."""
