"""The report's command line: a subcommand a thing it makes."""
