"""The task of queue `webhooks`: sign the event of a job and send it to the job's callback. ADR 57."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import ssl
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from jetjobs.define.context import current_job
from jetjobs.define.handle import JobHandle
from jetjobs.define.task import AsyncTask, JobRequest, Task
from jetjobs.model.errors import ConfigError, DefinitionError
from jetjobs.model.outcome import Reject, Retry
from jetjobs.model.retry import RetryPolicy
from jetjobs.model.settings import WebhookSettings
from jetjobs.model.webhooks.endpoint import Endpoint, keys_for, parse_endpoint
from jetjobs.model.webhooks.message import encoded, read_key, signature
from jetjobs.model.wire.validation import WEBHOOK_TASK, WEBHOOKS

_WAITS = ("5s", "30s", "2m", "10m", "30m", "1h", "2h", "3h", "4h", "5h", "6h")
_MOST_WAIT = timedelta(hours=6)
"""The longest pause, also for a receiver that requests one."""
SHOWN = 200
"""Characters of an answer in the error of a delivery."""
_TRANSIENT = frozenset({408, 425, 429})
"""Answers of 4xx after which a delivery is tried again."""
_SPARE = timedelta(seconds=5)


def _wait(attempt: int) -> str:
    return _WAITS[min(attempt, len(_WAITS)) - 1]


RETRY = RetryPolicy(max_attempts=len(_WAITS) + 1, cap=_MOST_WAIT, backoff=_wait)
"""Twelve attempts within a day."""


def webhook_task(settings: WebhookSettings) -> Task[Any, Any]:
    """The task as an app knows it, for example to check the arguments of a replay."""
    sender = Sender(settings)

    async def jetjobs_webhook(url: str, message: dict[str, Any]) -> dict[str, int]:
        """Send the event of a job that has ended to the URL of its callback."""
        return {"status": await sender.send(current_job().id, url, message)}

    options: Any = {
        "name": WEBHOOK_TASK,
        "queue": WEBHOOKS,
        "retry": RETRY,
        "timeout": settings.timeout + _SPARE,
    }
    return AsyncTask(jetjobs_webhook, _send, _send_sync, options)


async def _send(request: JobRequest[Any]) -> JobHandle[Any]:
    return _send_sync(request)


def _send_sync(request: JobRequest[Any]) -> JobHandle[Any]:
    raise DefinitionError(f"task {WEBHOOK_TASK!r} cannot be enqueued", hint="use options(callback=...) of a job")


def sending_task(settings: WebhookSettings) -> Task[Any, Any]:
    """The task for a worker of queue `webhooks`. ConfigError if what deliveries need is not installed."""
    if importlib.util.find_spec("h11") is None:
        raise ConfigError(
            f"queue {WEBHOOKS!r} needs the extra http, which is not installed", hint="pip install 'jetjobs[http]'"
        )
    return webhook_task(settings)


class Sender:
    """Delivers events. Raises Reject where another try would not help, otherwise Retry. Texts name the host only:
    the rest of a URL may be secret."""

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings

    async def send(self, message_id: str, url: str, message: Mapping[str, Any]) -> int:
        """Send the message once; the status of the answer."""
        try:
            endpoint = parse_endpoint(url)
        except ValueError as error:
            raise Reject(f"invalid callback: {error}") from None
        body, now = encoded(message), int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "jetjobs",
            "webhook-id": message_id,
            "webhook-timestamp": str(now),
            "webhook-signature": signature(self._keys(endpoint), message_id, now, body),
        }
        # Only here, because the app of a process that sends nothing knows this task too.
        from jetjobs.worker.webhooks import http_post

        try:
            async with asyncio.timeout(self._settings.timeout.total_seconds()):
                addresses = await http_post.allowed_addresses(endpoint, self._settings.allow_hosts)
                tls = self._tls if endpoint.scheme == "https" else None
                answer = await http_post.post(endpoint, addresses, headers, body, tls)
        except http_post.NotAllowed as error:
            raise Reject(f"{error}; webhooks.allow_hosts may list {endpoint.host}") from None
        except TimeoutError:
            limit_s = self._settings.timeout.total_seconds()
            raise Retry(reason=f"{endpoint.host} did not answer within {limit_s:g} s") from None
        except OSError as error:
            raise Retry(reason=f"{endpoint.host}: {str(error) or type(error).__name__}") from error
        return _judge(endpoint, answer.status, answer.retry_after, answer.body)

    def _keys(self, endpoint: Endpoint) -> list[bytes]:
        settings = self._settings
        keys = keys_for(endpoint, settings.secrets, settings.default_secret)
        if not keys:
            what = "set webhooks.secrets for it, or webhooks.default_secret, and replay this job"
            raise Reject(f"no secret for {endpoint.host}: {what}")
        return [read_key(key.get_secret_value()) for key in keys]

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._settings.tls_ca)


def _judge(endpoint: Endpoint, status: int, retry_after: str, body: bytes) -> int:
    """The status of a delivery that was accepted. Raises what follows from any other."""
    if 200 <= status < 300:
        return status
    shown = body[: 4 * SHOWN].decode("utf-8", "replace")[:SHOWN]
    text = f"{endpoint.host} answered {status}" + (f": {shown}" if shown else "")
    if 400 <= status < 500 and status not in _TRANSIENT:
        raise Reject(text)
    raise Retry(_pause(retry_after) if status in (429, 503) else None, reason=text)


def _pause(text: str) -> timedelta | None:
    """The pause that `Retry-After` requests, in seconds or as a date, within a second and the longest wait."""
    seconds: float | None = None
    if text.isascii() and text.isdigit():
        seconds = float(text[:9])
    else:
        with contextlib.suppress(ValueError, TypeError):
            moment = parsedate_to_datetime(text)
            seconds = (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return None if seconds is None else min(max(timedelta(seconds=1), timedelta(seconds=seconds)), _MOST_WAIT)
