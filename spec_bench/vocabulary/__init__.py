"""What things are called: columns and their definitions, titles, trees' shorthand, models."""
