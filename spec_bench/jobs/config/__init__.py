"""What was asked: a composed config as settings, pairs and cells. Decodes nothing."""
