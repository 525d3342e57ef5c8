"""One job from start to end, decoded in this process or by a server."""
