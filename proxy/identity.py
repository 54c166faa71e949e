"""Who is calling? From the credential of a request to the tenant behind it, its lane, and what it may use.

Keys are known by their SHA-256 alone. A lookup by digest tells nothing of a key by its time: two keys that differ in one byte
have unrelated digests.
"""

from __future__ import annotations

import fnmatch
import hashlib
import hmac
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

CREDENTIAL_FIELDS = (b"authorization", b"x-api-key", b"api-key")


class _Globs:
    """Is a name one of these? Names are compared exactly, case and width included; `*` and `?` stand for anything."""

    __slots__ = ("_names", "_pattern")

    def __init__(self, names: Iterable[str]) -> None:
        names = tuple(names)
        self._names = frozenset(names)
        globs = [fnmatch.translate(name) for name in names if "*" in name or "?" in name or "[" in name]
        self._pattern = re.compile("|".join(globs)) if globs else None

    def __contains__(self, name: str) -> bool:
        return name in self._names or (self._pattern is not None and self._pattern.match(name) is not None)


@dataclass(frozen=True, slots=True)
class Identity:
    """The paying identity behind a key. `lane` is an index in order of precedence; None for pools or models: all of them."""

    name: str
    lane: int
    traffic: str = "interactive"
    pools: frozenset[str] | None = None
    models: tuple[str, ...] | None = None  # names or globs
    salt: int = field(init=False, repr=False, compare=False, default=0)  # a number of its own, for hashes that keep tenants apart
    _globs: _Globs | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "salt", zlib.crc32(self.name.encode()))
        if self.models is not None:
            object.__setattr__(self, "_globs", _Globs(self.models))

    def may_use_model(self, name: object) -> bool:
        """May it ask for this model? A key that is narrowed to some may use nothing else: no name is none of them."""
        return self._globs is None or (isinstance(name, str) and name in self._globs)

    def may_use_pool(self, name: str) -> bool:
        """May its requests go to this pool?"""
        return self.pools is None or name in self.pools

    def usable(self, names: Mapping[str, Iterable[str]]) -> list[str]:
        """Those of the names that it may ask for, in their order: its catalogue. Each name with the pools it leads to."""
        return [name for name, pools in names.items() if self.may_use_model(name) and any(map(self.may_use_pool, pools))]


class Identities:
    """All keys of the file, by their SHA-256, and who calls without one."""

    __slots__ = ("_by_digest", "anonymous")

    def __init__(self, keys: Sequence[tuple[bytes, Identity]], anonymous: Identity | None = None) -> None:
        """`keys` are pairs of a digest (32 bytes) and who it is. Raises ValueError if a digest is none, or there twice."""
        self._by_digest = {digest: (digest, identity) for digest, identity in keys}
        if len(self._by_digest) != len(keys):
            raise ValueError("two keys have the same secret")
        if any(len(digest) != hashlib.sha256().digest_size for digest in self._by_digest):
            raise ValueError("a digest is not a SHA-256")
        self.anonymous = anonymous

    def identify(self, fields: Mapping[bytes, bytes]) -> Identity | None:
        """Whose credential do these header fields carry? None: an unknown one, several that disagree, or none where one is needed."""
        if not self._by_digest:  # nobody has a key: SDKs send one all the same
            return self.anonymous
        found: Identity | None = None
        presented = False
        for name in CREDENTIAL_FIELDS:
            value = fields.get(name)
            if value is None:
                continue
            if name == b"authorization":
                scheme, _, value = value.partition(b" ")
                if scheme.lower() != b"bearer":
                    return None
            identity = self._known(value.strip(b" \t"))
            if identity is None or (found is not None and identity is not found):
                return None
            found, presented = identity, True
        return found if presented else self.anonymous

    def _known(self, secret: bytes) -> Identity | None:
        digest = hashlib.sha256(secret).digest()
        known = self._by_digest.get(digest)
        return known[1] if known is not None and hmac.compare_digest(known[0], digest) else None
