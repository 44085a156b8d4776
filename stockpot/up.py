"""`stockpot up`: the stack, for as long as it is wanted."""

import asyncio
import json
import shlex
from collections.abc import Callable

from stockpot.stack import Stack, StackSettings, running_stack
from stockpot.supervisor import Report


async def stay_up(settings: StackSettings, report: Report, show: Callable[[str], None]) -> None:
    """Run the stack until cancelled; `show` gets what a user needs to reach it.

    Raises: ProcessDiedError, UnavailableError when the stack does not stay up."""
    async with running_stack(settings, report) as stack:
        model = await stack.gateway.first_model()
        show(f"base URL  {stack.base_url}")
        show(f"API key   {settings.api_key}")
        show(f"model     {model}\n\n{curl_line(stack, model)}\n")
        report("Ctrl-C ends all")
        await asyncio.Event().wait()


def curl_line(stack: Stack, model: str) -> str:
    """A command that asks the stack something, ready to be pasted into a shell."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Write a haiku about soup."}],
        "max_tokens": 48,
        "temperature": 0.2,
    }
    words = [
        *("curl", "--silent", "--noproxy", "*", f"{stack.base_url}/chat/completions"),
        *("--header", f"Authorization: Bearer {stack.settings.api_key}"),
        *("--header", "Content-Type: application/json"),
        *("--data", json.dumps(body)),
    ]
    return shlex.join(words)
