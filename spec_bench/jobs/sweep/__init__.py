"""Many jobs: their plan, their processes and GPUs, and their progress."""
