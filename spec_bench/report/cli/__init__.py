"""The report's command line: one subcommand for each kind of output."""
