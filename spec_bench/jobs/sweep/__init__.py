"""Many jobs: what they will take, where they run, and the search in two stages."""
