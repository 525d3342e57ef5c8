"""Models, prompts and energy meters of a job."""
