"""`stockpot up`: the stack, for as long as it is wanted."""

import asyncio
import json
import shlex
import urllib.request
from collections.abc import Callable

from stockpot.stack import Stack, StackSettings, running_stack
from stockpot.supervisor import Report

_ASK_DEADLINE_S = 10.0


async def stay_up(settings: StackSettings, report: Report, show: Callable[[str], None]) -> None:
    """Run the stack until cancelled; `show` gets what a user needs to reach it.

    Raises: ProcessDiedError, UnavailableError when the stack does not stay up."""
    async with running_stack(settings, report) as stack:
        model = await asyncio.to_thread(first_model, stack)
        show(f"base URL  {stack.base_url}")
        show(f"API key   {settings.api_key}")
        show(f"model     {model}\n\n{curl_line(stack, model)}\n")
        report("Ctrl-C ends all")
        await asyncio.Event().wait()


def first_model(stack: Stack) -> str:
    """The name of the served model, as the gateway gives it. Blocks."""
    request = urllib.request.Request(
        f"{stack.base_url}/models", headers={"Authorization": f"Bearer {stack.settings.api_key}"}
    )
    # No proxy of the environment between us and the loopback interface.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_ASK_DEADLINE_S) as response:
        name = json.load(response)["data"][0]["id"]
    assert isinstance(name, str)
    return name


def curl_line(stack: Stack, model: str) -> str:
    """A command that asks the stack something, ready to be pasted into a shell."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Write a haiku about soup."}],
        "max_tokens": 48,
    }
    words = [
        *("curl", "--silent", "--noproxy", "*", f"{stack.base_url}/chat/completions"),
        *("--header", f"Authorization: Bearer {stack.settings.api_key}"),
        *("--header", "Content-Type: application/json"),
        *("--data", json.dumps(body)),
    ]
    return shlex.join(words)
