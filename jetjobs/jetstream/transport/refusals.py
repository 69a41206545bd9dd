"""Why a server is refused, or refuses this client, in plain words and with what to do about it."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from typing import Any

import nats.errors

from jetjobs.jetstream.transport.errors import is_denial
from jetjobs.model.errors import AccessDenied, BrokerUnavailable, JetJobsError
from jetjobs.model.settings import NatsSettings, show_url

# Verification errors of OpenSSL, X509_V_ERR_*.
_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_NAME = frozenset({62, 64})
_UNKNOWN_CA = frozenset({2, 18, 19, 20, 21})
PLAIN_DATA = "unencrypted data before the handshake"
# A greeting in clear where TLS was expected, by the version of OpenSSL and by when it arrives.
_PLAIN = frozenset({"wrong version number", "record layer failure", "unknown protocol", PLAIN_DATA})
_SET_CERTIFICATE = "set nats.tls_cert and nats.tls_key"


class ConnectionRefused(nats.errors.Error):
    """This client refuses to send its login. nats-py takes it for a failed try and goes on with the next."""

    def __init__(self, reason: JetJobsError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def no_server(settings: NatsSettings, limit_s: float, reason: str) -> BrokerUnavailable:
    """The error when no server answered in time; `reason` is that of the last try, if there was one."""
    hint = "start one with `jetjobs dev`, or set another with --server or JETJOBS_NATS__URL"
    if "expecting INFO" in reason:
        reason = "it closes the connection without a greeting"
        hint = "if its tls block has handshake_first, set nats.tls_first"
    more = f": {reason}" if reason else ""
    return BrokerUnavailable(f"no NATS server at {show_url(settings.url)} within {limit_s:g} s{more}", hint=hint)


def no_tls(where: str) -> ConnectionRefused:
    return ConnectionRefused(
        BrokerUnavailable(
            f"{where} does not offer TLS, which the settings require: no login was sent",
            hint="enable TLS on the server; without it remove tls:// from the URL and the settings nats.tls_*",
        )
    )


def no_client_certificate(where: str) -> ConnectionRefused:
    return ConnectionRefused(AccessDenied(f"{where} requires a client certificate", hint=_SET_CERTIFICATE))


def refusal(error: BaseException, settings: NatsSettings, info: dict[str, Any], where: str) -> JetJobsError | None:
    """The reason if this error of a try to connect will not pass by itself; None for an ordinary outage.

    `info` is the greeting of the server; `where` its URL without login.
    """
    if isinstance(error, ConnectionRefused):
        return error.reason
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate(error, settings, where)
    closed = isinstance(error, OSError | nats.errors.UnexpectedEOF) and not isinstance(error, TimeoutError)
    if _is_tls(error) or (closed and info.get("tls_verify")):
        return _handshake(error, settings, where)
    text = str(error).removeprefix("nats: ").strip("'")
    if is_denial(text) or (closed and info.get("auth_required")):
        # The server requires credentials, and refused ours or closed the connection.
        return AccessDenied(
            f"{where} refused the credentials: {text or type(error).__name__}",
            hint="check nats.user, nats.password, nats.token, nats.nkey or nats.creds (jetjobs config show)",
        )
    return None


def _certificate(error: ssl.SSLCertVerificationError, settings: NatsSettings, where: str) -> JetJobsError:
    found: dict[str, Any] = getattr(error, "certificate", {})
    if error.verify_code == _EXPIRED:
        until = _date(found.get("notAfter"))
        # The date is that of the server's own certificate; a CA may have expired instead.
        text = f"expired on {until:%Y-%m-%d}" if until and until < datetime.now(UTC) else "or its CA has expired"
        hint = "renew it, or correct the clock of this machine"
    elif error.verify_code == _NOT_YET_VALID:
        begins = _date(found.get("notBefore"))
        text = f"is not valid before {begins:%Y-%m-%d}" if begins else "is not valid yet"
        hint = "correct the clock of this machine"
    elif error.verify_code in _OTHER_NAME:
        names = ", ".join(value for _, value in found.get("subjectAltName", ())) or "another host"
        wanted = error.verify_message.split("'")[1] if "'" in error.verify_message else where
        text = f"is for {names}, not for {wanted}"
        hint = "use a URL with a name in the certificate, or set nats.tls_hostname to one"
    elif error.verify_code in _UNKNOWN_CA:
        text = f"is not signed by a CA in {settings.tls_ca or 'the trust store of the system'}"
        hint = "set nats.tls_ca to the CA of the server"
    else:
        text, hint = f"was refused: {error.verify_message}", "check the certificate of the server"
    return BrokerUnavailable(f"the certificate of {where} {text}", hint=hint)


def _date(text: str | None) -> datetime | None:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC) if text else None


def _is_tls(error: BaseException) -> bool:
    """Whether TLS itself failed. That the connection ended during the handshake says nothing about TLS."""
    return isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)


def _handshake(error: BaseException, settings: NatsSettings, where: str) -> JetJobsError:
    reason = "the connection was closed"
    if _is_tls(error):
        reason = (getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)).lower()
        reason = reason.replace("_", " ")
    if "certificate required" in reason or not (settings.tls_cert or _is_tls(error)):
        return no_client_certificate(where).reason
    if settings.tls_cert and ("alert" in reason or not _is_tls(error)):
        # With TLS 1.3 the server checks it after the handshake, and often only closes the connection.
        text = f"{where} refused the client certificate {settings.tls_cert}: {reason}"
        return AccessDenied(text, hint="use one that is valid and signed by a CA in the server's ca_file")
    if settings.tls_first and reason in _PLAIN:
        text = f"{where} does not begin with a TLS handshake"
        return BrokerUnavailable(
            text, hint="unset nats.tls_first, or set handshake_first in the server's tls block"
        )
    return BrokerUnavailable(f"TLS handshake with {where} failed: {reason}", hint="check the log of the server")
