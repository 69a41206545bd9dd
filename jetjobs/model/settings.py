"""Settings: immutable groups with defaults, validated when they are built."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from ipaddress import ip_address
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from jetjobs.model.durations import to_duration
from jetjobs.model.errors import ConfigError, DefinitionError
from jetjobs.model.public import public
from jetjobs.model.webhooks.endpoint import check_host, check_pattern
from jetjobs.model.webhooks.message import read_key
from jetjobs.model.wire.lenient_json import read_json
from jetjobs.model.wire.namespaces import check_namespace

# Up to the last @, because a password may contain @ or a slash. The scheme is optional.
_LOGIN = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)?.*@", re.DOTALL)
_SEED = re.compile(r"S[A-Z2-7]{57}|.*\n.*", re.DOTALL)


def _duration(value: Any, info: ValidationInfo) -> timedelta:
    # pydantic collects only ValueError; any other error would not name the setting.
    try:
        return to_duration(info.field_name or "duration", value)
    except DefinitionError as error:
        raise ValueError(str(error)) from None


def _lease(value: timedelta) -> timedelta:
    if value < timedelta(seconds=1):
        raise ValueError("lease must be at least 1s: heartbeats are sent every third of it")
    return value


_SCHEMES = ("nats", "tls", "ws", "wss")


def check_urls(value: str) -> str:
    """The URLs of servers, separated by commas. ValueError for an invalid one; the message does not repeat it,
    because it may contain a password.
    """
    for one in value.split(","):
        try:
            parts = urlsplit(one.strip() if "://" in one else f"nats://{one.strip()}")
            found = (
                parts.scheme.lower() in _SCHEMES
                and bool(parts.hostname)
                and (parts.port is None or parts.port >= 0)
            )
        except ValueError:  # an invalid port, or an unclosed bracket
            found = False
        if not found:
            raise ValueError("invalid server URL: use nats://HOST:PORT, several separated by commas")
    return value


def is_loopback(url: str) -> bool:
    """Whether all servers are on this machine.

    >>> is_loopback("nats://localhost:4222,127.0.0.1"), is_loopback("nats://127.0.0.1,nats://db.example.com")
    (True, False)
    """
    return all(
        _is_loopback(urlsplit(one.strip() if "://" in one else f"nats://{one.strip()}").hostname or "")
        for one in url.split(",")
    )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def show_url(url: str) -> str:
    """The URL, or several, without user, password or token."""
    return ",".join(_LOGIN.sub(r"\1", one.strip()) for one in url.split(","))


def _path(value: str) -> str:
    """ValueError for an empty path, such as that of an unset variable: it would silently mean no TLS or login."""
    if not value.strip():
        raise ValueError("expected the path of a file, found an empty text")
    return value


def _key_path(value: str) -> str:
    """ValueError for a key instead of its path, which would be printed; the message does not repeat it."""
    if _SEED.fullmatch(value.strip()):
        raise ValueError("expected the path of a file, found its content")
    return value


def _namespace(value: str) -> str:
    # pydantic collects only ValueError; any other error would not name the setting.
    try:
        return check_namespace(value)
    except DefinitionError as error:
        raise ValueError(f"{error}; {error.hint}") from None


def _env(value: str) -> str:
    """A near miss of `production` would silently count as development."""
    name = value.strip().lower()
    if name != "production" and name.startswith("prod"):
        raise ValueError(f"invalid env {value!r}: did you mean 'production'?")
    return name


Duration = Annotated[timedelta, BeforeValidator(_duration)]
Positive = Annotated[Duration, Field(gt=timedelta(0))]
FilePath = Annotated[str, AfterValidator(_path)]
KeyPath = Annotated[FilePath, AfterValidator(_key_path)]


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


@public("jetjobs")
class NatsSettings(_Group):
    """How to connect to the server."""

    url: Annotated[str, AfterValidator(check_urls)] = "nats://127.0.0.1:4222"
    """One URL, or several separated by commas."""
    creds: KeyPath | None = None
    """Path of a credentials file: a JWT and its NKey seed."""
    nkey: KeyPath | None = None
    """Path of a file with an NKey seed."""
    user: str | None = None
    password: SecretStr | None = None
    token: SecretStr | None = None
    tls_ca: FilePath | None = None
    """Path of a file with the CA certificates to trust. Not set: those of the system."""
    tls_cert: FilePath | None = None
    """Path of the client certificate."""
    tls_key: KeyPath | None = None
    """Path of its key. Not set: the file of the certificate contains the key."""
    tls_hostname: str | None = None
    """The name that the server's certificate must have, if it is not the host of the URL."""
    tls_first: bool = False
    """Begin with the TLS handshake; the server must have `handshake_first`."""
    inbox_prefix: str = "_INBOX"
    connect_timeout: Positive = timedelta(seconds=5)

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if self.tls_key and not self.tls_cert:
            raise ValueError("tls_key is set without tls_cert")
        if requires_tls(self) and any(url.startswith("ws://") for url in _urls(self)):
            raise ValueError("TLS is required, but a ws:// URL has none: use wss://")
        return self


def _urls(settings: NatsSettings) -> list[str]:
    return [url.strip().lower() for url in settings.url.split(",")]


def requires_tls(settings: NatsSettings) -> bool:
    """Whether a server without TLS is refused. One tls:// URL or one setting for TLS decides for all of them."""
    given = (settings.tls_ca, settings.tls_cert, settings.tls_hostname, settings.tls_first)
    return any(given) or any(url.startswith(("tls://", "wss://")) for url in _urls(settings))


def has_login(settings: NatsSettings) -> bool:
    """Whether a login is sent to the server, from a setting or from a URL."""
    given = (settings.creds, settings.nkey, settings.user, settings.password, settings.token)
    return any(given) or "@" in settings.url


@public("jetjobs")
class QueueSettings(_Group):
    """How queues are configured on the server."""

    namespace: Annotated[str, AfterValidator(_namespace)] | None = None
    """First token of every name on the server. None means the name of the app."""
    replicas: int | None = Field(default=None, ge=1, le=5)
    """None means 3 in a cluster, else 1."""
    storage: Literal["file", "memory"] = "file"
    lease: Annotated[Positive, AfterValidator(_lease)] = timedelta(seconds=30)
    """`ack_wait`: how long a worker holds a delivery without sending a heartbeat."""
    max_running: int = Field(default=10_000, ge=1)
    """`max_ack_pending` of each lane: how many jobs all workers together may hold at once."""
    max_crashes: int = Field(default=3, ge=1)
    """Crashes or lost leases after which the job is dead-lettered without another attempt."""
    unknown_task_grace: Annotated[Duration, Field(ge=timedelta(0))] = timedelta(minutes=10)
    """How long a job whose task no running worker knows waits before it is dead-lettered."""
    dead_max_age: Positive = timedelta(days=30)
    audit_max_age: Positive = timedelta(days=90)
    """How long entries of the audit are kept."""


@public("jetjobs")
class WorkerSettings(_Group):
    """How a worker runs jobs."""

    slots: int = Field(default=10, ge=0, le=10_000)
    processes: int = Field(default=1, ge=1, le=256)
    stop_timeout: Duration = timedelta(seconds=30)
    timeout: Positive = timedelta(minutes=5)
    """The timeout of tasks that do not set one."""
    provision: Literal["apply", "verify", "off"] = "apply"
    http: str = "off"
    """HOST:PORT of /livez, /readyz and /metrics, or `off`."""


@public("jetjobs")
class HttpSettings(_Group):
    """The HTTP API: where `jetjobs http` listens, and the limits for its clients."""

    host: str = "127.0.0.1"
    """An address other than loopback needs tokens."""
    port: int = Field(default=8400, ge=0, le=65535)
    require_token: bool = False
    """Refuse requests without a token on loopback too, for example behind a proxy."""
    max_body: int = Field(default=2**20, ge=1024)
    """Bytes of a request's body."""
    body_timeout: Positive = timedelta(seconds=30)
    """How long a client may take to send a body."""
    max_requests: int = Field(default=4_000, ge=1)
    """Requests in progress, without event streams."""
    rate: float = Field(default=100.0, ge=0)
    """Requests per second of one token; 0 for no limit."""
    burst: int = Field(default=200, ge=1)
    """Requests of one token that may come at once."""
    max_streams: int = Field(default=100, ge=1)
    """Event streams that are open at the same time."""
    max_streams_per_token: int = Field(default=10, ge=1)


@public("jetjobs")
class ObserveSettings(_Group):
    """Logging."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "console", "json"] = "auto"


def _keys(value: Any) -> Any:
    """One or two keys for one endpoint: as a list, or as text separated by spaces."""
    shown = value.get_secret_value() if isinstance(value, SecretStr) else value
    texts = shown.split() if isinstance(shown, str) else shown
    if not isinstance(texts, list | tuple) or len(texts) > 2:
        raise ValueError("use one key, or two while one replaces the other")
    keys = [text.get_secret_value() if isinstance(text, SecretStr) else str(text) for text in texts]
    for key in keys:
        read_key(key)
    return keys


def _by_endpoint(value: Any) -> Any:
    """Keys by endpoint, as a mapping or as JSON, which a variable of the environment has."""
    found = read_json(value) if isinstance(value, str) else value
    if not isinstance(found, Mapping) or not all(found.values()):
        raise ValueError('use a table of keys by endpoint: {"https://example.com/hooks": "whsec_..."}')
    return {check_pattern(str(entry)): keys for entry, keys in found.items()}


def _hosts(value: Any) -> Any:
    """Hosts as a list, or as text separated by commas."""
    entries = value.split(",") if isinstance(value, str) else value
    return [check_host(str(entry)) for entry in entries if entry] if isinstance(entries, list | tuple) else entries


Keys = Annotated[tuple[SecretStr, ...], BeforeValidator(_keys)]


@public("jetjobs")
class WebhookSettings(_Group):
    """How webhooks are signed, and where they may be sent."""

    secrets: Annotated[Mapping[str, Keys], BeforeValidator(_by_endpoint)] = {}
    """The keys of each endpoint, a host or the beginning of a URL. With two keys there are two signatures."""
    default_secret: Keys = ()
    """The keys of all other endpoints. Without keys nothing is sent to them."""
    allow_hosts: Annotated[tuple[str, ...], BeforeValidator(_hosts)] = ()
    """Hosts that may have a private address: a name, `*.NAME` or an address, with or without a port."""
    timeout: Positive = timedelta(seconds=10)
    """How long one delivery may take, from the lookup of the name to the answer."""
    tls_ca: FilePath | None = None
    """Path of a file with the CA certificates to trust. Not set: those of the system."""


@public("jetjobs")
class Settings(_Group):
    """All settings. `Settings()` connects to a server on this machine."""

    app: str | None = None
    """MODULE:NAME of the app, for the command line."""
    env: Annotated[str, AfterValidator(_env)] = "development"
    """`production` refuses `jetjobs dev` and its server."""
    nats: NatsSettings = NatsSettings()
    queues: QueueSettings = QueueSettings()
    worker: WorkerSettings = WorkerSettings()
    http: HttpSettings = HttpSettings()
    observe: ObserveSettings = ObserveSettings()
    webhooks: WebhookSettings = WebhookSettings()


def build_settings(values: dict[str, Any], sources: Mapping[str, str] | None = None) -> Settings:
    """Settings from plain values. ConfigError names each invalid key, and its source if `sources` has it."""
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            key = ".".join(map(str, problem["loc"])) or "settings"
            source = (sources or {}).get(key)
            lines.append(f"{key}: {problem['msg']}" + (f" (from {source})" if source else ""))
        raise ConfigError("invalid settings: " + "; ".join(lines)) from None
