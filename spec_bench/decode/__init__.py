"""THE loop: grow a tree, one target pass, verdict, commit, record."""
