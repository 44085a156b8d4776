"""Keys, tenants and the salts that keep their prefixes apart."""

import pytest

from gateway.errors import ApiError
from gateway.tenants import Tenants


def test_every_key_has_a_salt_of_its_own_that_lasts() -> None:
    tenants = Tenants(["a", "b"], shared_prefix=False)
    a, b = tenants.authenticate("Bearer a"), tenants.authenticate("bearer b")
    assert a.salt != b.salt and len(a.salt) == len(b.salt) == 32
    assert Tenants(["a"], shared_prefix=False).authenticate("Bearer a") == a


def test_a_cache_salt_makes_a_namespace_within_the_tenants() -> None:
    tenants = Tenants(["a", "b"], shared_prefix=False)
    a, b = tenants.authenticate("Bearer a"), tenants.authenticate("Bearer b")
    salts = {tenant.turn_salt(salt) for tenant in (a, b) for salt in (None, "x", "y")}
    assert len(salts) == 6 and all(len(salt) == 32 for salt in salts)
    assert a.turn_salt("") == a.turn_salt(None) == a.salt


@pytest.mark.parametrize("header", [None, "", "a", "Bearer", "Bearer ", "Bearer A", "Basic a", "Bearer a b"])
def test_others_are_refused(header: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        Tenants(["a"], shared_prefix=False).authenticate(header)
    assert caught.value.status == 401
    assert "Bearer KEY" in str(caught.value)


def test_keys_need_not_be_ascii() -> None:
    header = "Bearer clé".encode().decode("latin-1")  # as the server hands it on
    assert Tenants(["clé"], shared_prefix=False).authenticate(header).salt


def test_without_keys_everyone_is_one_tenant() -> None:
    tenants = Tenants([], shared_prefix=False)
    assert tenants.authenticate(None) == tenants.authenticate("Bearer x")
