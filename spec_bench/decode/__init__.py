"""The decoding loop: grow a tree, run the target once, find a verdict, commit, record."""
