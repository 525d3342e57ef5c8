"""One job from beginning to end, in this process or through a server."""
