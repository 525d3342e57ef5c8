"""Names in print: columns and their definitions, titles of decoders and tasks, trees' shorthand."""
