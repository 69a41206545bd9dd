"""Read the certificates, keys and credentials that the settings name. A problem is a ConfigError with the file.

The files are read for each connection, so a certificate or a key that was renewed is used by the next one.
"""

from __future__ import annotations

import base64
import contextlib
import re
import ssl
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from jetjobs.model.errors import ConfigError
from jetjobs.model.settings import NatsSettings

INSTALL = 'pip install "jetjobs[nkeys]"'
_USER_SEED = re.compile(r"\bSU[A-Z2-7]{56}\b")
_USER_JWT = re.compile(r"BEGIN NATS USER JWT-+\s+([\w.=-]+)\s")


class KeyLogin(NamedTuple):
    """A login that proves to have a key by a signature. The key itself is not sent."""

    public_key: str
    jwt: str | None
    """What the key may do, from a credentials file. None: the server knows the key."""
    keys: Any

    def sign(self, nonce: str) -> bytes:
        return base64.b64encode(self.keys.sign(nonce.encode()))


def key_login(settings: NatsSettings) -> KeyLogin | None:
    """The login of `creds`, else of `nkey`; None without either."""
    name, path = ("nats.creds", settings.creds) if settings.creds else ("nats.nkey", settings.nkey)
    if not path:
        return None
    text = _read(name, path)
    jwt = _USER_JWT.search(text)
    if settings.creds and jwt is None:
        raise ConfigError(f"{name}: {path} contains no user JWT", hint="create it with `nsc generate creds`")
    seed = _USER_SEED.search(text)
    if seed is None:
        raise ConfigError(f"{name}: {path} contains no NKey seed of a user", hint="a seed begins with SU")
    try:
        import nkeys  # type: ignore[import-untyped] # part of the extra of that name
    except ImportError:
        raise ConfigError(f"{name} needs the package nkeys", hint=INSTALL) from None
    keys = nkeys.from_seed(bytearray(seed[0].encode()))
    return KeyLogin(keys.public_key.decode(), jwt[1] if settings.creds and jwt else None, keys)


class _Handshake(ssl.SSLObject):
    """Adds the certificate that was refused to the error, which then can say what is wrong with it."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except ssl.SSLCertVerificationError as error:
            # Not public, and empty with old versions of OpenSSL.
            with contextlib.suppress(AttributeError, IndexError, TypeError):
                error.certificate = self._sslobj.get_unverified_chain()[0].get_info()  # type: ignore[attr-defined]
            raise


def tls_context(settings: NatsSettings) -> ssl.SSLContext:
    """Trusts the CA of the settings, else those of the system, and has the client certificate if there is one."""
    if settings.tls_ca:
        _read("nats.tls_ca", settings.tls_ca, "-----BEGIN")
    try:
        context = ssl.create_default_context(cafile=_path(settings.tls_ca) if settings.tls_ca else None)
    except ssl.SSLError as error:
        raise ConfigError(f"nats.tls_ca: {settings.tls_ca} is not a certificate: {_reason(error)}") from error
    context.sslobject_class = _Handshake
    if settings.tls_cert:
        _load_client_certificate(context, settings.tls_cert, settings.tls_key or settings.tls_cert)
    return context


def _load_client_certificate(context: ssl.SSLContext, cert: str, key: str) -> None:
    _read("nats.tls_cert", cert, "-----BEGIN CERTIFICATE")
    _read("nats.tls_key", key, "PRIVATE KEY-----")

    def no_password() -> NoReturn:  # without it, OpenSSL would ask on the terminal
        raise ConfigError(
            f"nats.tls_key: {key} is encrypted",
            hint=f"decrypt it: openssl pkey -in {key} -out NEW, and make that readable to the worker only",
        )

    try:
        context.load_cert_chain(_path(cert), _path(key), password=no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"nats.tls_key: {key} is not the key of the certificate {cert}") from error
        raise ConfigError(f"nats.tls_cert: {cert} or its key {key} is invalid: {_reason(error)}") from error


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")


def _path(given: str) -> Path:
    return Path(given).expanduser()


def _read(name: str, given: str, mark: str = "") -> str:
    """The text of a file. ConfigError if it cannot be read or does not contain `mark`."""
    try:
        text = _path(given).read_text(errors="replace")
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{name}: {given} cannot be read: {reason}") from error
    if mark not in text:
        what = "certificate" if "CERT" in mark or name == "nats.tls_ca" else "key"
        raise ConfigError(f"{name}: {given} contains no {what} in PEM format")
    return text
