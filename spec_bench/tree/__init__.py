"""How a draft tree grows. A policy declares how it draws siblings; a rule must be exact for it."""
