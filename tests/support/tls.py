"""Servers with TLS and logins, and the certificates, keys and credentials files for them, made by the test."""

from __future__ import annotations

import base64
import json
import os
import time
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import nkeys  # type: ignore[import-untyped]
import trustme

from jetjobs.dev_server import EmbeddedServer
from tests.support.cluster import free_ports

ACCOUNT, OPERATOR, USER = nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_USER


class Pair(NamedTuple):
    """Paths of a certificate and its key."""

    cert: str
    key: str


class Authority:
    """A certificate authority with its file `ca`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._name = name
        self._authority = trustme.CA()
        self.ca = str(folder / f"{name}.pem")
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(
        self,
        *names: str,
        file: str = "server",
        begins_in: float = -1,
        ends_in: float = 30,
        in_one_file: bool = False,
    ) -> Pair:
        """A certificate for these names, valid between two days counted from now."""
        now = datetime.now(UTC)
        made = self._authority.issue_cert(
            *names, not_before=now + timedelta(days=begins_in), not_after=now + timedelta(days=ends_in)
        )
        pair = Pair(str(self._folder / f"{self._name}-{file}.pem"), str(self._folder / f"{self._name}-{file}.key"))
        made.cert_chain_pems[0].write_to_path(pair.cert)
        made.private_key_pem.write_to_path(pair.cert if in_one_file else pair.key, append=in_one_file)
        return pair

    def block(self, *names: str, **options: Any) -> str:
        """The `tls` block of a server's configuration."""
        pair = self.issue(*(names or ("127.0.0.1", "localhost")))
        more = "".join(f"\n  {name}: {str(value).lower()}" for name, value in options.items())
        ca = f'\n  ca_file: "{self.ca}"' if options.get("verify") else ""
        return f'tls {{\n  cert_file: "{pair.cert}"\n  key_file: "{pair.key}"{ca}{more}\n}}\n'


class ConfiguredServer(EmbeddedServer):
    """A server with this configuration. The address in `url` has the scheme nats://, with TLS or without."""

    def __init__(self, folder: Path, config: str) -> None:
        self._monitor = free_ports(1)[0]
        self._file = folder / "server.conf"
        self.configure(config)
        super().__init__(extra=("-c", str(self._file)))

    def configure(self, config: str) -> None:
        """For the next start."""
        self._file.write_text(f'http: "127.0.0.1:{self._monitor}"\n{config}\n')

    @property
    def address(self) -> str:
        return self.url.split("://")[1]

    @property
    def plain_url(self) -> str:
        return f"nats://{self.address}"

    @property
    def tls_url(self) -> str:
        return f"tls://{self.address}"

    def clients(self) -> list[dict[str, Any]]:
        """The connections as the server reports them: `tls_version` is missing in a plain one."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._monitor}/connz?auth=1", timeout=5) as answer:
            found: list[dict[str, Any]] = json.load(answer)["connections"]
        return found


# Keys and credentials files


class Key(NamedTuple):
    seed: str
    public: str


def new_key(kind: int) -> Key:
    seed = nkeys.encode_seed(os.urandom(32), kind)
    return Key(seed.decode(), nkeys.from_seed(bytearray(seed)).public_key.decode())


def _token(signer: Key, subject: str, name: str, claims: dict[str, Any]) -> str:
    body = {
        "jti": name,
        "iat": int(time.time()),
        "iss": signer.public,
        "name": name,
        "sub": subject,
        "nats": claims,
    }
    parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, body]
    signed = ".".join(_encode(json.dumps(part).encode()) for part in parts)
    signature = nkeys.from_seed(bytearray(signer.seed.encode())).sign(signed.encode())
    return f"{signed}.{_encode(signature)}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Operator:
    """An operator with an account that may use JetStream: `config` makes a server trust it."""

    def __init__(self) -> None:
        self._key, self._account, system = new_key(OPERATOR), new_key(ACCOUNT), new_key(ACCOUNT)
        unlimited = dict.fromkeys(
            ("subs", "data", "payload", "imports", "exports", "conn", "leaf", "mem_storage", "disk_storage"), -1
        )
        limits = {**unlimited, "wildcards": True, "streams": -1, "consumer": -1}
        of_account = {"type": "account", "version": 2, "limits": limits}
        no_streams = {key: limits[key] for key in limits if key not in ("mem_storage", "disk_storage")}
        of_system = {"type": "account", "version": 2, "limits": {**no_streams, "streams": 0, "consumer": 0}}
        preload = {
            self._account.public: _token(self._key, self._account.public, "jobs", of_account),
            system.public: _token(self._key, system.public, "SYS", of_system),
        }
        itself = {"type": "operator", "version": 2, "system_account": system.public}
        accounts = "\n".join(f"  {name}: {token}" for name, token in preload.items())
        self.config = (
            f"operator: {_token(self._key, self._key.public, 'op', itself)}\nresolver: MEMORY\n"
            f"system_account: {system.public}\nresolver_preload {{\n{accounts}\n}}\n"
        )

    def creds(self, path: Path, name: str = "worker") -> str:
        """Write a credentials file of a new user, as `nsc` does. Returns its path."""
        user = new_key(USER)
        limits = {"subs": -1, "data": -1, "payload": -1}
        token = _token(self._account, user.public, name, {"type": "user", "version": 2, **limits})
        path.write_text(
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )
        return str(path)
