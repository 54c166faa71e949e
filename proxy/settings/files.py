"""What do the files that the settings name hold? Secrets and certificates, read when the settings are."""

from __future__ import annotations

import hashlib
import os
import ssl
import stat
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationInfo

SECRET_BYTES_MAX = 64 << 10
NO_PAIR = "must be a PEM certificate (chain) that belongs to the key beside it; the key must have no passphrase"


def resolved(value: Any, info: ValidationInfo) -> Path:
    """The path of a regular file that can be read, taken from the directory of the settings file."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("must be the path of a file")
    path = Path((info.context or {}).get("directory", "."), value)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("must be the path of a regular file")
        if not os.access(path, os.R_OK):
            raise ValueError("names a file that may not be read")
    except OSError as error:
        raise ValueError(f"names a file that cannot be read: {error.strerror}") from None
    return path


def secret(value: Any) -> SecretStr:
    """A secret as it goes over the wire: visible ASCII."""
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if not isinstance(text, str):
        raise ValueError("must be text; put it in quotes")
    if not text:
        raise ValueError("must not be empty")
    if not all("!" <= letter <= "~" for letter in text):
        raise ValueError("must be visible ASCII characters, without blanks")
    return SecretStr(text)


def secret_in(value: Any, info: ValidationInfo) -> SecretStr:
    """The secret a file holds, without the white space around it."""
    path = resolved(value, info)
    try:
        with path.open("rb") as file:
            data = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"names a file that cannot be read: {error.strerror}") from None
    if len(data) > SECRET_BYTES_MAX:
        raise ValueError("names a file that is too large for a secret")
    try:
        return secret(data.decode("ascii").strip())
    except UnicodeDecodeError:
        raise ValueError("names a file that holds more than ASCII characters") from None
    except ValueError as error:
        raise ValueError(f"names a file whose content {error}") from None


def digest(value: Any) -> bytes:
    """The SHA-256 of a secret, all that is kept of a caller's."""
    return hashlib.sha256(secret(value).get_secret_value().encode()).digest()


def digest_in(value: Any, info: ValidationInfo) -> bytes:
    """The SHA-256 of the secret in a file."""
    return digest(secret_in(value, info))


def digest_of(value: Any) -> bytes:
    """A SHA-256 given as such."""
    if not isinstance(value, str) or len(value) != 64 or not set(value.lower()) <= set("0123456789abcdef"):
        raise ValueError("must be a SHA-256: 64 hexadecimal digits in quotes (`fairlane keys new` prints one)")
    return bytes.fromhex(value)


def is_pair(cert: Path, key: Path) -> bool:
    """Do the certificate and the key belong together? A key with a passphrase belongs to nobody here."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=lambda: b"")
    except (OSError, ValueError):
        return False
    return True


def is_authority(ca: Path) -> bool:
    """Does the file hold certificates of authorities?"""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(ca)
    except (OSError, ValueError):
        return False
    return True
