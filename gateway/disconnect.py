"""Work on behalf of a client, for as long as the client is there."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

_Result = TypeVar("_Result")


class ClientGoneError(Exception):
    """The client closed its connection; there is nobody to answer."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of `work`; cancels it as soon as the client is gone. The request's body must have been read.

    Raises: ClientGoneError, and whatever `work` raises."""
    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_raise_when_gone(receive))
            task = group.create_task(work)
            task.add_done_callback(lambda _: watch.cancel())
    except BaseExceptionGroup as raised:
        # The server also says "gone" once the whole answer was sent: then the work is done.
        if not task.done() or task.cancelled() or task.exception() is not None:
            raise raised.exceptions[0] from None
    return task.result()


async def _raise_when_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGoneError
