"""The name of the rule with a stated acceptance; see ``verify.simulated``."""

SIMULATED = "simulated"
