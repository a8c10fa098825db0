"""Flower as a carrier of messages: bytes in, bytes out. flwr is imported when it is used."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from edgelearn.errors import RunError

from .messages import Instruction, Outcome, Outcomes, Reply

RECORD, FIELD = "message", "bytes"  # where a message of Flower holds one of ours
_POLL_SECONDS = 0.05
_QUERY_SECONDS = 120
_LOST = (3, 4, 5, 8)  # Flower's codes for messages and processes that are gone, through no fault of the client's code
_ATTEMPTS = 3  # to send a message that is lost


class FlowerGrid:
    """Clients on Flower's nodes. Client i is served by the node whose "partition-id" is i modulo the number of nodes.

    Arguments:
    - `grid`: Flower's, as a ServerApp gets it.
    - `nodes`: number of nodes that must be there.
    - `patience`: seconds to wait for them (default 120).

    Raises RunError if the nodes don't come, or are others than they should be.
    """

    def __init__(self, grid: Any, nodes: int, patience: float = _QUERY_SECONDS) -> None:
        self.grid = grid
        self._nodes = self._find(nodes, patience)

    def exchange(self, instructions, deadline, arrived):
        start, outcomes, attempts = time.monotonic(), Outcomes(), Counter()
        clients = sorted(instructions)
        sent = self.grid.push_messages([self._message(client, instructions[client]) for client in clients])
        waiting = dict(zip(sent, clients, strict=True))
        while waiting:
            replies = sorted(self.grid.pull_messages(list(waiting)), key=lambda m: m.metadata.reply_to_message_id)
            for reply in replies:
                client = waiting.pop(reply.metadata.reply_to_message_id)
                attempts[client] += 1
                if reply.has_error() and reply.error.code in _LOST and attempts[client] < _ATTEMPTS:
                    # A client does the same work again, so the round has the same bits.
                    (number,) = self.grid.push_messages([self._message(client, instructions[client])])
                    waiting[number] = client
                    continue
                outcomes[client] = outcome = _outcome(reply)
                arrived(client, outcome)
            if deadline is not None and time.monotonic() - start > deadline:
                break
            time.sleep(_POLL_SECONDS)
        for client in waiting.values():
            outcomes[client] = f"late: no reply within {deadline:g} s"
            arrived(client, outcomes[client])
        return outcomes

    def _message(self, client: int, data: bytes) -> Any:
        from flwr.app import ConfigRecord, Message, RecordDict

        content = RecordDict({RECORD: ConfigRecord({FIELD: data})})
        return Message(content, dst_node_id=self._nodes[client % len(self._nodes)], message_type="train")

    def _find(self, count: int, patience: float) -> list[int]:
        """The ids of the nodes, by their partition-id: Flower draws ids at random."""
        from flwr.app import Message, RecordDict

        end = time.monotonic() + patience
        while len(ids := sorted(self.grid.get_node_ids())) < count:
            if time.monotonic() > end:
                raise RunError(
                    f"{len(ids)} of {count} nodes have registered after {patience:g} s. Look into their logs."
                )
            time.sleep(_POLL_SECONDS)
        asked = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in ids]
        partitions = {}
        for reply in self.grid.send_and_receive(asked, timeout=patience):
            data = _outcome(reply)
            partitions[int(data) if isinstance(data, bytes) else data] = reply.metadata.src_node_id
        if sorted(partitions, key=str) != sorted(range(count), key=str):
            raise RunError(
                f"Nodes with partition-id 0 to {count - 1} are needed; after {patience:g} s only "
                f"{sorted(partitions, key=str)} answered. Look into their logs, and resume the run."
            )
        return [partitions[number] for number in range(count)]


def client_app(work: Callable[[Any], Any]) -> Any:
    """Return a ClientApp that answers instructions. `work`: makes what carries them out, from the context of a node."""
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    def reply(data: bytes, to: Any) -> Any:
        return Message(RecordDict({RECORD: ConfigRecord({FIELD: data})}), reply_to=to)

    @app.train()
    def train(message: Any, context: Any) -> Any:
        data = message.content[RECORD][FIELD]
        try:
            return reply(work(context).answer(data), message)
        except RunError as error:  # of this node's disk: the others go on without it
            return reply(Reply.refusal(Instruction.from_bytes(data), error).to_bytes(), message)

    @app.query()
    def query(message: Any, context: Any) -> Any:
        return reply(str(context.node_config["partition-id"]).encode(), message)

    return app


def server_app(run: Callable[[Any, Mapping[str, Any]], None]) -> Any:
    """Return a ServerApp that calls `run` with Flower's grid and the configuration of Flower's run."""
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        run(grid, context.run_config)

    return app


def _outcome(reply: Any) -> Outcome:
    if reply.has_error():
        return f"Flower reports error {reply.error.code}: {reply.error.reason}"
    return reply.content[RECORD][FIELD]
