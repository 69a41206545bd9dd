"""One delivery of a job: the message, and how it is acked or its lease extended."""

from __future__ import annotations

from collections.abc import Mapping

from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.nats_client import read_headers
from jetjobs.model.errors import BrokerError

ACK = b"+ACK"
IN_PROGRESS = b"+WPI"
_CONFIRM_S = 10.0

_NONE: Mapping[str, str] = {}


class Delivery:
    """A message that a lane delivered. Everything except the acks is read from the message itself."""

    __slots__ = (
        "_connection",
        "ack_subject",
        "data",
        "delivered",
        "fence",
        "header_bytes",
        "headers",
        "pending",
        "sequence",
        "stored_at",
        "subject",
    )

    def __init__(
        self, connection: Connection, subject: str, ack_subject: str, data: bytes, headers: bytes | None
    ) -> None:
        self._connection = connection
        self.subject = subject
        self.data = data
        self.headers: Mapping[str, str] = read_headers(headers) if headers else _NONE
        self.header_bytes = len(headers) if headers else 0
        self.ack_subject = ack_subject
        # `delivered`: how often the server has delivered it; above 1 only after a lease expired.
        # `fence`: the consumer's sequence. It only rises, so it orders the owners of a job.
        # `pending`: how many messages follow in the lane.
        self.delivered, self.sequence, self.fence, self.stored_at, self.pending = api.parse_ack(ack_subject)

    def ack(self) -> None:
        """Remove the job from its lane, once it is stored in its next place. If the ack is lost, the job is
        delivered again and not run."""
        self._connection.post(self.ack_subject, ACK)

    async def ack_confirmed(self) -> bool:
        """Like `ack`, but wait until the server has confirmed it: for callers that then delete what a second run
        would need."""
        try:
            await self._connection.ask(self.ack_subject, ACK, None, _CONFIRM_S)
        except BrokerError:
            return False
        return True

    async def extend(self, through: Connection, timeout_s: float) -> None:
        """Request another full lease, possibly through another connection. BrokerError unless the server answers.

        The answer confirms that the server received the request, not that the lease was still ours: only this
        process's clock can decide that.
        """
        await through.ask(self.ack_subject, IN_PROGRESS, None, timeout_s)
