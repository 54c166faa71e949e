"""Whose key is it, and what may it use?"""

from __future__ import annotations

import hashlib

import pytest

from proxy.identity import Identities, Identity

ACME = Identity("acme", 0)
TRIAL = Identity("trial", 1, pools=frozenset(["small"]), models=("small", "qwen-*"))
ANYONE = Identity("anonymous", 1)


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


KEYS = [(digest("sk-acme"), ACME), (digest("sk-trial"), TRIAL)]
CLOSED, OPEN = Identities(KEYS), Identities(KEYS, ANYONE)


@pytest.mark.parametrize(
    "fields",
    [
        {b"authorization": b"Bearer sk-acme"},
        {b"authorization": b"bearer  sk-acme "},
        {b"x-api-key": b"sk-acme"},
        {b"api-key": b" sk-acme"},
        {b"authorization": b"Bearer sk-acme", b"x-api-key": b"sk-acme", b"host": b"t"},
    ],
)
def test_a_key_in_each_of_its_forms(fields: dict[bytes, bytes]) -> None:
    assert CLOSED.identify(fields) is ACME and OPEN.identify(fields) is ACME


@pytest.mark.parametrize(
    "fields",
    [
        {b"authorization": b"Bearer sk-acmf"},
        {b"authorization": b"Bearer "},
        {b"authorization": b"Bearer"},
        {b"authorization": b""},
        {b"authorization": b"sk-acme"},
        {b"authorization": b"Basic sk-acme"},
        {b"x-api-key": b""},
        {b"x-api-key": b"SK-ACME"},
        {b"x-api-key": b"\xff" * 1000},
        {b"authorization": b"Bearer sk-acme", b"x-api-key": b"sk-trial"},
        {b"authorization": b"Bearer sk-acme", b"api-key": b"wrong"},
        {b"authorization": b"Basic x", b"api-key": b"sk-acme"},
    ],
)
def test_a_wrong_key_is_nobody_even_where_anybody_may_call(fields: dict[bytes, bytes]) -> None:
    assert CLOSED.identify(fields) is None and OPEN.identify(fields) is None


def test_no_key_is_anonymous_or_nobody() -> None:
    assert CLOSED.identify({}) is None
    assert OPEN.identify({b"host": b"t"}) is ANYONE


def test_secrets_are_not_kept() -> None:
    assert "sk-acme" not in repr(vars_of(CLOSED))


def vars_of(identities: Identities) -> list[object]:
    return [getattr(identities, name) for name in Identities.__slots__]


def test_two_keys_of_one_secret_are_refused() -> None:
    with pytest.raises(ValueError, match="same secret"):
        Identities([KEYS[0], (KEYS[0][0], TRIAL)])
    with pytest.raises(ValueError, match="SHA-256"):
        Identities([(b"short", ACME)])


def test_models_are_compared_exactly() -> None:
    assert ACME.may_use_model("large") and ACME.may_use_model(None)
    assert TRIAL.may_use_model("small") and TRIAL.may_use_model("qwen-7b")
    for name in ("large", "SMALL", " small", "small\0", "ｓmall", "small/../large", "qwen", "Qwen-7b", "", None, ["small"], 7):
        assert not TRIAL.may_use_model(name), name
    assert TRIAL.usable(dict.fromkeys(("large", "qwen-7b", "small"), ("small",))) == ["qwen-7b", "small"]
    assert TRIAL.may_use_pool("small") and not TRIAL.may_use_pool("large") and ACME.may_use_pool("large")
    assert not Identity("none", 0, models=()).may_use_model("x")
    assert TRIAL.salt != ACME.salt
