"""The few questions that the supervisor's side asks a running gateway. Needs no HTTP package."""

import asyncio
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from kvstore.core.errors import UnavailableError

_ANSWER_DEADLINE_S = 10.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class GatewayProbe:
    """Asks the gateway at `url`, such as http://127.0.0.1:8000."""

    url: str
    api_key: str

    async def wait_for_workers(self, count: int, deadline_s: float) -> None:
        """Return once the gateway reaches `count` workers: it listens before it has heard of them.

        Raises: UnavailableError after `deadline_s` seconds."""
        seen = 0
        try:
            async with asyncio.timeout(deadline_s):
                while (seen := (await self._get("/ready"))["workers"]) < count:  # noqa: ASYNC110  # another process
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise UnavailableError(f"the gateway reaches {seen} of {count} workers after {deadline_s:.0f} s") from None

    async def first_model(self) -> str:
        """The name of the served model, which a request must give."""
        return str((await self._get("/v1/models"))["data"][0]["id"])

    async def _get(self, path: str) -> dict[str, Any]:
        return await asyncio.to_thread(self._get_blocking, path)

    def _get_blocking(self, path: str) -> dict[str, Any]:
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.api_key}"})
        # No proxy of the environment between us and the loopback interface.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=_ANSWER_DEADLINE_S) as response:
                body = response.read()
        except urllib.error.HTTPError as error:
            body = error.read()  # /ready says by 503 that no worker is there, with the same body
        answer = json.loads(body)
        assert isinstance(answer, dict)
        return answer
