"""The demo's sessions: coding agents that ask about Python's own standard library, file by file.

A session is what an agent would send: the shared system prompt, then turn after turn a tool's result
(lines of a real source file, one excerpt after the other) with a question about it. Pure and deterministic: the same
size and the same Python give the same sessions.

    system prompt | files, question 1 | answer 1 | tool result, question 2 | answer 2 | ...
                  '---- turn 1 -----------------' '---- turn 2 ----------------------'
"""

import importlib.util
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from stockpot.demo.system_prompt import SYSTEM_PROMPT

CHARS_PER_TOKEN = 3.8
"""Python source in SmolLM2's vocabulary: 3.5 to 4.4 over the modules below."""

_FILES_OF_AGENT = (
    ("json.decoder", "json.encoder"),
    ("textwrap", "string"),
    ("shlex", "cmd"),
    ("heapq", "bisect"),
    ("configparser", "netrc"),
    ("difflib", "filecmp"),
)
_QUESTIONS = (
    "What does this part do?",
    "Which errors can it raise, and when?",
    "Is there an edge case that it does not handle?",
    "What would you rename here, and why?",
    "Which of these lines runs most often?",
    "How would you test this part?",
    "Does it change any of its arguments?",
    "What must be true before it is called?",
)


@dataclass(frozen=True, slots=True)
class WorkloadSize:
    """How much the agents ask for."""

    agents: int
    turns: int
    source_tokens_first: int
    """Tokens of source code in a session's first turn, about; its question and frame add some 45."""
    source_tokens_later: int
    """The same in each later turn."""
    answer_tokens_max: int


@dataclass(frozen=True, slots=True)
class Session:
    """One agent's session: what it says, turn by turn."""

    agent: str
    user_messages: tuple[str, ...]


def make_sessions(size: WorkloadSize) -> list[Session]:
    """One session for each agent, each about files of its own as long as there are enough."""
    return [
        Session(f"agent-{number}", tuple(_user_messages(modules, number, size)))
        for number, modules in enumerate(islice(cycle(_FILES_OF_AGENT), size.agents), 1)
    ]


def system_message() -> dict[str, str]:
    """What every session begins with."""
    return {"role": "system", "content": SYSTEM_PROMPT}


def _user_messages(modules: tuple[str, ...], agent_number: int, size: WorkloadSize) -> list[str]:
    """`size.turns` messages: lines that continue where the last message's ended, and a question."""
    sources = {_path_in_repository(module): _source_lines(module) for module in modules}
    questions = islice(cycle(_QUESTIONS), agent_number, None)
    budgets = [size.source_tokens_first, *[size.source_tokens_later] * (size.turns - 1)]
    messages: list[str] = []
    path, first = next(iter(sources)), 0
    for tokens, question in zip(budgets, questions, strict=False):
        if first == len(sources[path]):
            del sources[path]
            path, first = next(iter(sources)), 0
        end = _end_of_excerpt(sources[path], first, int(tokens * CHARS_PER_TOKEN))
        head = f"Result of read_file(path={path!r}, first_line={first + 1}, last_line={end}):"
        messages.append(f"{head}\n{''.join(sources[path][first:end])}\n{question}")
        first = end
    return messages


def _path_in_repository(module: str) -> str:
    return f"Lib/{module.replace('.', '/')}.py"


def _source_lines(module: str) -> list[str]:
    """All lines of a module of the standard library; nothing is imported but its package."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, f"this Python has no source of {module}"
    return Path(spec.origin).read_text(encoding="utf-8").splitlines(keepends=True)


def _end_of_excerpt(lines: list[str], first: int, chars: int) -> int:
    """The end of the lines from `first` on that come nearest to `chars` characters: at least one line."""
    end, length = first + 1, len(lines[first])
    while end < len(lines) and abs(length + len(lines[end]) - chars) < abs(length - chars):
        length += len(lines[end])
        end += 1
    return end
