"""Files that the settings name are checked before connecting, and a problem names setting and file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from jetjobs.jetstream.transport.connect_options import connect_options
from jetjobs.jetstream.transport.credentials import key_login
from jetjobs.model.errors import ConfigError
from jetjobs.model.settings import NatsSettings, has_login, requires_tls
from tests.support.tls import USER, Authority, Operator, new_key


def problem(**nats: str) -> str:
    with pytest.raises(ConfigError) as caught:
        connect_options(NatsSettings.model_validate(nats), 5.0)
    return f"{caught.value} → {caught.value.hint}"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    def make(text: str) -> str:
        path = tmp_path / "file"
        path.write_text(text)
        return str(path)

    return make


@pytest.mark.parametrize("setting", ["creds", "nkey", "tls_ca", "tls_cert"])
def test_a_file_that_cannot_be_read_is_named(setting: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert f"nats.{setting}: {missing} cannot be read: No such file or directory" in problem(**{setting: missing})
    assert f"nats.{setting}: {tmp_path} cannot be read: Is a directory" in problem(**{setting: str(tmp_path)})
    assert f"nats.{setting}: ~unknown-user-1/x cannot be read" in problem(**{setting: "~unknown-user-1/x"})


def test_certificates_and_keys_of_the_wrong_form_are_named(tmp_path: Path, write: Callable[[str], str]) -> None:
    authority = Authority(tmp_path)
    pair, other = authority.issue("a@example.com", file="a"), authority.issue("b@example.com", file="b")
    junk = write("nothing of the kind")
    assert f"nats.tls_ca: {junk} contains no certificate in PEM format" in problem(tls_ca=junk)
    assert f"nats.tls_ca: {pair.key} is not a certificate" in problem(tls_ca=pair.key)
    assert f"nats.tls_cert: {junk} contains no certificate" in problem(tls_cert=junk, tls_key=pair.key)
    assert f"nats.tls_key: {junk} contains no key" in problem(tls_cert=pair.cert, tls_key=junk)
    assert f"nats.tls_key: {pair.cert} contains no key" in problem(tls_cert=pair.cert)
    mismatch = problem(tls_cert=pair.cert, tls_key=other.key)
    assert f"nats.tls_key: {other.key} is not the key of the certificate {pair.cert}" in mismatch
    broken = write("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert f"{broken} or its key {pair.key} is invalid" in problem(tls_cert=broken, tls_key=pair.key)


def test_an_encrypted_key_is_named_and_no_password_is_asked_for(
    tmp_path: Path, write: Callable[[str], str]
) -> None:
    pair = Authority(tmp_path).issue("a@example.com")
    key = load_pem_private_key(Path(pair.key).read_bytes(), None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word"))
    path = write(encrypted.decode())
    assert f"nats.tls_key: {path} is encrypted → decrypt it" in problem(tls_cert=pair.cert, tls_key=path)


@pytest.mark.parametrize(
    ("setting", "text", "expected"),
    [
        ("creds", "", "contains no user JWT → create it with `nsc generate creds`"),
        (
            "creds",
            "-----BEGIN NATS USER JWT-----\neyJ0.eyJq.sig\n------END NATS",
            "contains no NKey seed of a user",
        ),
        ("nkey", "", "contains no NKey seed of a user"),
        ("nkey", "SA" + "A" * 56, "contains no NKey seed of a user"),
        ("nkey", "U" + "A" * 55, "contains no NKey seed of a user"),
        ("nkey", "SU" + "A" * 40, "contains no NKey seed of a user"),
    ],
)
def test_a_malformed_credentials_file_is_named_and_not_shown(
    setting: str, text: str, expected: str, write: Callable[[str], str]
) -> None:
    found = problem(**{setting: write(text)})
    assert expected in found
    assert not text or text not in found


def test_a_key_is_found_with_and_without_decoration(tmp_path: Path, write: Callable[[str], str]) -> None:
    key = new_key(USER)
    decorated = f"-----BEGIN USER NKEY SEED-----\r\n{key.seed}\r\n------END USER NKEY SEED------\r\n"
    for text in (key.seed, f"\n {key.seed} \n", decorated):
        login = key_login(NatsSettings(nkey=write(text)))
        assert login is not None
        assert (login.public_key, login.jwt) == (key.public, None)
    login = key_login(NatsSettings(nkey=write(key.seed), creds=Operator().creds(tmp_path / "creds")))
    assert login is not None
    assert login.jwt is not None, "a credentials file takes precedence"


def test_the_missing_package_is_named_last(monkeypatch: pytest.MonkeyPatch, write: Callable[[str], str]) -> None:
    monkeypatch.setitem(sys.modules, "nkeys", None)
    assert key_login(NatsSettings(user="u")) is None
    assert (
        problem(nkey=write(new_key(USER).seed))
        == 'nats.nkey needs the package nkeys → pip install "jetjobs[nkeys]"'
    )


@pytest.mark.parametrize(
    ("nats", "expected"),
    [
        ({"url": "nats://a:1"}, False),
        ({"url": "tls://a:1"}, True),
        ({"url": "nats://a:1, tls://b:1"}, True),
        ({"url": "wss://a:1"}, True),
        ({"url": "nats://tls:1"}, False),
        ({"tls_ca": "/ca"}, True),
        ({"tls_cert": "/c", "tls_key": "/k"}, True),
        ({"tls_hostname": "a"}, True),
        ({"tls_first": "true"}, True),
        ({"tls_first": "false"}, False),
    ],
)
def test_one_setting_or_url_for_tls_requires_it(nats: dict[str, str], expected: bool) -> None:
    assert requires_tls(NatsSettings.model_validate(nats)) is expected


@pytest.mark.parametrize("nats", [{"url": "nats://u:p@h:1"}, {"token": "t"}, {"nkey": "/n"}, {"user": "u"}])
def test_a_login_is_recognised(nats: dict[str, str]) -> None:
    assert has_login(NatsSettings.model_validate(nats))
    assert not has_login(NatsSettings(url="nats://h:1", tls_cert="/c"))
