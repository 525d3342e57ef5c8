"""One self-contained HTML page per experiment: no request leaves it, it can be mailed as a file."""
