"""What tests of jobs share."""

import pytest

from spec_bench.decode.decoder import Decoder


@pytest.fixture
def calls(monkeypatch):
    """Each call of a decoder so far: its name and the prompts."""
    calls, generate = [], Decoder.generate

    def noting(self, requests, *arguments):
        calls.append((self.name, [request.prompt_id for request in requests]))
        return generate(self, requests, *arguments)

    monkeypatch.setattr(Decoder, "generate", noting)
    return calls
