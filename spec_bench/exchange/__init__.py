"""Answer files of other harnesses: Spec-Bench's, EAGLE's, Medusa's."""
