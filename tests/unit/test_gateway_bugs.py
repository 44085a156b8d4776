"""An error that nobody expected: the client gets a 500 in OpenAI's shape, the log no word of it."""

import logging

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from gateway.bugs import CatchBugs
from gateway.metrics import GatewayMetrics


async def buggy(scope: Scope, receive: Receive, send: Send) -> None:
    raise ValueError("canary text")


async def test_a_bug_is_a_500_without_its_message(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gateway")
    metrics = GatewayMetrics()
    transport = httpx.ASGITransport(CatchBugs(buggy, metrics))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        answer = await http.get("/v1/models")
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "canary" not in answer.text + caplog.text
    assert "error=ValueError" in caplog.text and "test_gateway_bugs.py:" in caplog.text
    assert b'refused_requests_total{status="500"} 1.0' in metrics.expose()
