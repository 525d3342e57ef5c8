"""Block efficiency of decoders that were never run, from plain decoding's text."""
