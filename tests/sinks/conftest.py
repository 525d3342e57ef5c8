"""Jobs on the tiny family, logged to W&B without a network or an account."""

import pytest


@pytest.fixture(autouse=True)
def _no_account(monkeypatch, tmp_path):
    """No key, no home to find one in, nothing that would reach a server."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
