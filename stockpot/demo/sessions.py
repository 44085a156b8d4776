"""Agents at work: each runs its session turn by turn, all at once; and the same turns again, cold."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import openai

from stockpot.demo.result import TurnRecord
from stockpot.demo.turns import Answer, Message, TurnError, ask, new_salt
from stockpot.demo.workload import Session, system_message


class Progress(Protocol):
    """Shows a person what happens while it happens."""

    def note(self, line: str) -> None:
        """Something about the processes or the phase."""

    def turn_started(self, agent: str, turn: int, *, is_cold: bool) -> None: ...

    def turn_done(self, record: TurnRecord) -> None: ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and how to ask."""

    client: openai.AsyncOpenAI
    model: str
    answer_tokens_max: int
    progress: Progress

    async def ask(self, messages: Sequence[Message], cache_salt: str | None = None) -> Answer:
        """As `turns.ask`."""
        return await ask(self.client, self.model, messages, self.answer_tokens_max, cache_salt)


@dataclass(slots=True)
class Agent:
    """A session under way. `prompts[i]` is what turn `i + 1` sent, for the cold run to send again."""

    session: Session
    records: list[TurnRecord] = field(default_factory=list)
    prompts: list[list[Message]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Why the session, or its cold run, ended early; one line each."""

    @property
    def worker(self) -> str:
        """The worker that served the last turn; empty before the first."""
        return self.records[-1].warm.extension.worker if self.records else ""

    async def run_warm(self, endpoint: Endpoint, last_turn: int, restarted_worker: str = "") -> None:
        """Go on up to `last_turn`; with `restarted_worker`, the first turn is marked if that one served the last."""
        is_after_restart = bool(restarted_worker) and self.worker == restarted_worker
        messages = self._history()
        while len(self.records) < last_turn and not self.failures:
            turn = len(self.records) + 1
            messages.append({"role": "user", "content": self.session.user_messages[turn - 1]})
            endpoint.progress.turn_started(self.session.agent, turn, is_cold=False)
            try:
                answer = await endpoint.ask(messages)
            except TurnError as error:
                self.failures.append(f"{self.session.agent}, turn {turn}: {error}")
                return
            self.prompts.append(list(messages))
            messages.append({"role": "assistant", "content": answer.text})
            self.records.append(TurnRecord(self.session.agent, turn, answer, is_after_restart=is_after_restart))
            is_after_restart = False
            endpoint.progress.turn_done(self.records[-1])

    async def run_cold(self, endpoint: Endpoint, first_turn: int) -> None:
        """Send the prompts from `first_turn` on again, each under a salt of its own: nothing stored is used."""
        for index in range(first_turn - 1, len(self.records)):
            record = self.records[index]
            endpoint.progress.turn_started(record.agent, record.turn, is_cold=True)
            try:
                answer = await endpoint.ask(self.prompts[index], new_salt())
            except TurnError as error:
                self.failures.append(f"{record.agent}, turn {record.turn}, cold: {error}")
                return
            self.records[index] = replace(record, cold=answer)
            endpoint.progress.turn_done(self.records[index])

    def _history(self) -> list[Message]:
        if not self.records:
            return [system_message()]
        return [*self.prompts[-1], {"role": "assistant", "content": self.records[-1].warm.text}]


async def run_all_warm(agents: Sequence[Agent], endpoint: Endpoint, last_turn: int, restarted_worker: str = "") -> None:
    """All agents at once, up to `last_turn`."""
    async with asyncio.TaskGroup() as tasks:
        for agent in agents:
            tasks.create_task(agent.run_warm(endpoint, last_turn, restarted_worker))


async def run_all_cold(agents: Sequence[Agent], endpoint: Endpoint, *, is_last_turn_only: bool) -> None:
    """All agents at once, as in the warm run: each its turns again, or only its last one."""
    async with asyncio.TaskGroup() as tasks:
        for agent in agents:
            tasks.create_task(agent.run_cold(endpoint, max(1, len(agent.records)) if is_last_turn_only else 1))
