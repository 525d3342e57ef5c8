"""The machine that a program runs on: its files, its disk, its signals. Imports nothing of ours."""
