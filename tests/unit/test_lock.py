"""The lock files hold what pyproject.toml asks for; nothing is asked of an index here."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LOCKS = (ROOT / "requirements.lock", ROOT / "bench-peers.lock", ROOT / "engine/llama-cpp-python.lock")


def locked_versions() -> dict[str, str]:
    text = "\n".join(lock.read_text() for lock in LOCKS)
    return dict(re.findall(r"^([a-z0-9._-]+)==([^ ]+)", text, flags=re.MULTILINE))


def test_every_requirement_is_locked_to_a_version_it_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    versions = locked_versions()
    for requirement in map(Requirement, asked):
        assert requirement.specifier.contains(versions[requirement.name]), f"{requirement}: run `make lock`"


def test_the_locks_name_no_index() -> None:
    for lock in LOCKS:
        text = lock.read_text()
        assert "://" not in text
        assert "--index" not in text
