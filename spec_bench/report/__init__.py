"""From results files to tables and figures. Imports records and metrics; never torch."""
