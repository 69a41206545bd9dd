"""One message and its lease: what the server says of it, and the acks we may send."""

from __future__ import annotations

from collections.abc import Mapping

from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.protocol import read_headers
from jetjobs.model.errors import BrokerError

ACK = b"+ACK"
IN_PROGRESS = b"+WPI"
_CONFIRM_S = 10.0

_NONE: Mapping[str, str] = {}


class Delivery:
    """A job handed to us. Everything but the acks is read from the message itself."""

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
        # $JS.ACK.<stream>.<consumer>.<delivered>.<seq>.<consumer seq>.<stored at, ns>.<pending>; newer
        # servers may put domain and account in front and a token behind.
        tokens = ack_subject.split(".")
        start = 4 if len(tokens) == 9 else 6
        self.delivered = int(tokens[start])
        """How often the server handed it out; above 1 only after a lease ran out."""
        self.sequence = int(tokens[start + 1])
        self.fence = int(tokens[start + 2])
        """The consumer's sequence: only rises, so an older owner can be told from a newer."""
        self.stored_at = int(tokens[start + 3]) / 1e9
        self.pending = int(tokens[start + 4])
        """How many are left behind it in its lane."""

    def ack(self) -> None:
        """The job stands in its next place; forget it here. If this is lost it comes again, and is not run."""
        self._connection.post(self.ack_subject, ACK)

    async def ack_confirmed(self) -> bool:
        """Like `ack`, but waits for the server's word: for those who then destroy what a second run would need."""
        try:
            await self._connection.ask(self.ack_subject, ACK, None, _CONFIRM_S)
        except BrokerError:
            return False
        return True

    async def extend(self, through: Connection, timeout_s: float) -> None:
        """Ask for another full lease, perhaps through another connection. BrokerError unless the server answered.

        The answer says that the server has heard it, not that the lease was still ours: only our clock knows.
        """
        await through.ask(self.ack_subject, IN_PROGRESS, None, timeout_s)
