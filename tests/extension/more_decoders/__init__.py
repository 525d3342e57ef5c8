"""What another package adds to spec_bench, one file per idea."""
