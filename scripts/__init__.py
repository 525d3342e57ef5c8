"""Programs of the repository, in five workshops: README.md says what each makes."""
