"""API keys, tenants and salts.

A key stands for one tenant. Its salt is part of every block key of its prompts, so that no tenant can
read, probe or time what another one has stored. Keys are held as digests only.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.errors import ApiError

_KEY_DOMAIN = b"stockpot.gateway.key.v1"
_SALT_DOMAIN = b"stockpot.gateway.salt.v1"
_CACHE_SALT_DOMAIN = b"stockpot.gateway.cache-salt.v1"


@dataclass(frozen=True, slots=True)
class Tenant:
    salt: bytes
    """32 bytes, or none: then prefixes are shared with every other such tenant."""

    def turn_salt(self, cache_salt: str | None) -> bytes:
        """The salt of one turn; a `cache_salt` of the request makes a namespace of its own."""
        if not cache_salt:
            return self.salt
        return _digest(_CACHE_SALT_DOMAIN, self.salt, cache_salt.encode())


class Tenants:
    """Who may ask; without any keys, everyone, as one tenant."""

    def __init__(self, api_keys: Iterable[str], *, shared_prefix: bool) -> None:
        self._by_digest = {
            _digest(_KEY_DOMAIN, key.encode()): Tenant(b"" if shared_prefix else _digest(_SALT_DOMAIN, key.encode()))
            for key in api_keys
        }

    def authenticate(self, authorization: str | None) -> Tenant:
        """The tenant of an `Authorization` header.

        Raises: ApiError (401) without a known key."""
        if not self._by_digest:
            return Tenant(b"")
        scheme, _, key = (authorization or "").partition(" ")
        # A look-up by digest: its time says nothing about the keys. Headers come as latin-1, whatever they were.
        tenant = self._by_digest.get(_digest(_KEY_DOMAIN, key.strip().encode("latin-1", "replace")))
        if scheme.lower() != "bearer" or tenant is None:
            raise ApiError(
                "no valid API key: send one as `Authorization: Bearer KEY`",
                status=401,
                kind="authentication_error",
                code="invalid_api_key",
            )
        return tenant


def _digest(domain: bytes, *parts: bytes) -> bytes:
    """SHA-256 over the parts, each length-prefixed: no two lists of parts give the same bytes to hash."""
    digest = hashlib.sha256(domain)
    for part in parts:
        digest.update(len(part).to_bytes(4, "little") + part)
    return digest.digest()
