"""One self-contained HTML page per experiment."""
