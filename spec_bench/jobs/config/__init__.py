"""Settings of a job: a composed config as settings, pairs and cells. Decodes nothing."""
