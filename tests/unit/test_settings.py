import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from orchestrator.settings import Settings
from tests import REPOSITORY


@pytest.fixture(autouse=True)
def no_settings_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("SLIPSTREAM_")]:
        monkeypatch.delenv(name)


def test_defaults_are_closed_to_the_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    settings = Settings()
    assert (settings.host, settings.port, settings.is_loopback) == ("127.0.0.1", 8080, True)
    assert (settings.state_dir, settings.cache) == (Path("/s/slipstream"), Path("/c/slipstream"))
    assert settings.allowed_hosts == ("127.0.0.1", "localhost", "[::1]")
    assert settings.admin_keys() == settings.api_keys() == ()


def test_environment_sets_and_empty_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_PORT", "0")
    monkeypatch.setenv("SLIPSTREAM_HOST", "")
    monkeypatch.setenv("SLIPSTREAM_ALLOWED_HOSTS", "a.example, b.example,")
    settings = Settings()
    assert (settings.port, settings.host) == (0, "127.0.0.1")
    assert settings.allowed_hosts == ("a.example", "b.example")


@pytest.mark.parametrize("host, is_loopback", [("::1", True), ("localhost", True), ("127.9.9.9", True)])
def test_loopback_needs_no_key(host: str, is_loopback: bool) -> None:
    assert Settings(host=host).is_loopback is is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", "localhost.example.org"])
def test_any_other_address_needs_admin_keys(host: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k\n")
    with pytest.raises(ValidationError, match=f"SLIPSTREAM_HOST={re.escape(host)} can be reached"):
        Settings(host=host)
    with pytest.raises(ValidationError, match="SLIPSTREAM_ADMIN_KEYS_FILE"):
        Settings(host=host, api_keys_file=keys)
    assert Settings(host=host, admin_keys_file=keys).admin_keys() == ("k",)
    assert not Settings(host=host, allow_no_keys=True).is_loopback


def test_keys_are_lines(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\n\n  two  \r\n")
    assert Settings(api_keys_file=keys).api_keys() == ("one", "two")


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_a_key_is_an_error_not_an_open_door(tmp_path: Path, content: str) -> None:
    keys = tmp_path / "keys"
    keys.write_text(content)
    with pytest.raises(ValueError, match="holds no key"):
        Settings(admin_keys_file=keys).admin_keys()
    with pytest.raises(OSError):
        Settings(admin_keys_file=tmp_path / "missing").admin_keys()


@pytest.mark.parametrize("name, value", [("PORT", "70000"), ("STOP_TIMEOUT_SECONDS", "0"), ("ALLOW_NO_KEYS", "maybe")])
def test_a_wrong_value_names_its_setting(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"SLIPSTREAM_{name}", value)
    with pytest.raises(ValidationError, match=name.lower()):
        Settings()


@pytest.mark.parametrize("origin", ["https://chat.example", "http://localhost:3000", "http://[::1]:8080", "app://x"])
def test_origins_as_browsers_send_them(monkeypatch: pytest.MonkeyPatch, origin: str) -> None:
    monkeypatch.setenv("SLIPSTREAM_CORS_ORIGINS", f"{origin}, https://other.example")
    assert Settings().cors_origins == (origin, "https://other.example")


@pytest.mark.parametrize(
    "origin", ["chat.example", "https://chat.example/", "https://Chat.example", "https://*.example", "https://", "null"]
)
def test_what_no_browser_sends_is_no_origin(origin: str) -> None:
    with pytest.raises(ValidationError, match="is no origin"):
        Settings(cors_origins=(origin,))


def test_every_page_needs_a_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k\n")
    with pytest.raises(ValidationError, match="SLIPSTREAM_API_KEYS_FILE"):
        Settings(cors_origins=("*",))
    assert Settings(cors_origins=("*",), api_keys_file=keys).cors_origins == ("*",)


def test_the_document_lists_exactly_these_settings() -> None:
    rows = re.findall(
        r"^\| `SLIPSTREAM_(\w+)` \| (.*?) \| (.*?) \|$", (REPOSITORY / "docs" / "settings.md").read_text(), re.M
    )
    written = {name.lower(): description for name, _, description in rows}
    assert written == {name: field.description for name, field in Settings.model_fields.items()}


def test_the_document_names_the_defaults() -> None:
    rows = re.findall(r"^\| `SLIPSTREAM_(\w+)` \| (.*?) \|", (REPOSITORY / "docs" / "settings.md").read_text(), re.M)
    for name, shown in rows:
        default = Settings.model_fields[name.lower()].default
        if default is not None and Settings.model_fields[name.lower()].default_factory is None:
            text = ",".join(default) if isinstance(default, tuple) else str(default).removesuffix(".0")
            shown_default = f"`{text.lower() if isinstance(default, bool) else text}`" if text else ""
            assert shown == shown_default, name
