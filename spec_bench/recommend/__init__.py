"""Which decoder to use here, what a draft would need, and trees fitted to a pair."""
