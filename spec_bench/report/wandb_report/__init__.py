"""A project's runs as a W&B report, with a sweep's page and a paper's printed lines."""
