"""Starts servers that others wrote, has a job ask them, and ends them."""
