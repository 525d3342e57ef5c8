"""A job's means: models, prompts, meters."""
