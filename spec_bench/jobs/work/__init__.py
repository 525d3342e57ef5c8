"""What a job works with: models, prompts, meters, and the cells it has to decode."""
