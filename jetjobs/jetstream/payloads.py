"""Bodies that do not fit into a message: kept in the object store, the message carries the reference."""

from __future__ import annotations

import nats.errors
import nats.js.errors
from nats.js import JetStreamContext

from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.faults import from_exception
from jetjobs.model.errors import MalformedJob


class Payloads:
    """The object store of one namespace."""

    def __init__(self, connection: Connection, store: str) -> None:
        self._connection = connection
        self._store = store
        self._context: JetStreamContext | None = None

    async def put(self, name: str, data: bytes) -> None:
        """Store `data` under `name`, replacing what was there: a repeated move writes the same bytes."""
        try:
            store = await self._js().object_store(self._store)
            await store.put(name, data)
        except (nats.errors.Error, OSError) as error:
            raise from_exception(error, f"store {len(data):,} bytes in {self._store}") from error

    async def get(self, name: str) -> bytes:
        """The bytes. MalformedJob when they are gone: without them the job cannot run, now or later."""
        try:
            store = await self._js().object_store(self._store)
            return bytes((await store.get(name)).data or b"")
        except (nats.js.errors.ObjectNotFoundError, nats.js.errors.ObjectDeletedError):
            raise MalformedJob(f"the job's body {name!r} is not in {self._store}") from None
        except (nats.errors.Error, OSError) as error:
            raise from_exception(error, f"read {name} from {self._store}") from error

    async def delete(self, name: str) -> None:
        """Remove it; nothing happens when it is gone already."""
        try:
            store = await self._js().object_store(self._store)
            await store.delete(name)
        except (nats.js.errors.ObjectNotFoundError, nats.js.errors.ObjectDeletedError):
            return
        except (nats.errors.Error, OSError) as error:
            raise from_exception(error, f"delete {name} from {self._store}") from error

    def _js(self) -> JetStreamContext:
        if self._context is None:
            self._context = self._connection.nc.jetstream()
        return self._context
