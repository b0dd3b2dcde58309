"""What follows from a configuration."""

from pathlib import Path

import pytest

from twr.config import load
from twr.supervisor.current import derive

ROUTES = "routes: [{name: a, target_url: 'http://127.0.0.1:1/', secret_token_env: T}]\n"
ENVIRON = {"T": "own_token", "TELEGRAM_WEBHOOK_SECRET": "hook_secret"}


@pytest.mark.parametrize("text", ["", "trusted_networks: []\n"])
def test_no_networks_let_everyone_in(tmp_path: Path, text: str) -> None:
    """An empty list of trusted networks is the same as none: the secret keeps others out."""
    file = tmp_path / "twr.yaml"
    file.write_text(text + ROUTES)
    config = load(file, ENVIRON)
    assert derive(config, config.secrets(ENVIRON)).ingress.trusted_networks is None
