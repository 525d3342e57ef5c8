"""Programs of the repository, in four workshops: README.md says what each makes."""
