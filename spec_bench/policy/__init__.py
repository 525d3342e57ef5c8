"""How a draft tree grows. A policy declares how it draws siblings; a verifier must agree."""
