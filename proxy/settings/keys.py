"""Who may call, in which lane? `keys:` and `anonymous:` of the file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, model_validator

from proxy.settings.files import digest, digest_in, digest_of
from proxy.settings.section import Section, refuse, rivals, setting
from proxy.settings.values import Kind, Name, Names, OneOrMore

SECRETS = ("secret", "secret_sha256", "secret_file")

# Of a caller's secret only its SHA-256 is ever held.
Digest = Annotated[bytes, BeforeValidator(digest, json_schema_input_type=str), Kind("secret")]
DigestGiven = Annotated[bytes, BeforeValidator(digest_of, json_schema_input_type=str), Kind("64 hexadecimal digits")]
DigestInFile = Annotated[bytes, BeforeValidator(digest_in, json_schema_input_type=str), Kind("path")]


class Caller(Section):
    """What a caller may do."""

    later: ClassVar[frozenset[str]] = frozenset({"limits", "weight"})

    lane: Name = setting("the lane its requests wait in; a header may ask for a lower one")
    traffic: Annotated[Literal["interactive", "batch"], Kind("interactive or batch")] = setting(
        "the class that routes may ask for; a header or body may say batch", "interactive"
    )
    pools: Names | None = setting("the only pools it may use (403 outside)", None, shown="all")
    models: OneOrMore | None = setting("names or globs of the only models it may ask for (403 outside)", None, shown="all")


class Anonymous(Caller):
    """Callers without a key."""


class Key(Caller):
    """A secret that callers present, and what they may do with it."""

    name: Name = setting("the tenant, in logs and fairness")
    secret: Digest | None = setting("the secret; better taken from a variable", None, repr=False, exclude=True, shown="one of the three")
    secret_sha256: DigestGiven | None = setting("its SHA-256 instead", None, repr=False, exclude=True, shown="one of the three")
    secret_file: DigestInFile | None = setting("a file that holds it instead", None, repr=False, exclude=True, shown="one of the three")

    @model_validator(mode="after")
    def _one_secret(self) -> Self:
        if not self.model_fields_set & set(SECRETS):
            refuse(((), 'needs a secret: give one of "secret", "secret_sha256" and "secret_file"'))
        refuse(*rivals(self, *SECRETS))
        return self

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the secret."""
        return self.secret or self.secret_sha256 or self.secret_file or b""


def distinct(keys: Sequence[Key]) -> tuple[Key, ...]:
    """The keys, if no two share a name or a secret."""
    problems = []
    names: dict[str, int] = {}
    digests: dict[bytes, str] = {}
    for index, key in enumerate(keys):
        if names.setdefault(key.name, index) != index:
            problems.append(((index, "name"), f"is the name of two keys; the first is keys[{names[key.name]}]"))
        elif digests.setdefault(key.digest, key.name) != key.name:
            field = next(name for name in SECRETS if name in key.model_fields_set)
            problems.append(((index, field), f'is also the secret of key "{digests[key.digest]}"; a caller must be one or the other'))
    refuse(*problems)
    return tuple(keys)
