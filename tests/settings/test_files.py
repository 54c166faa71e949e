"""What do named files hold, and what is refused?"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from proxy.settings.files import SECRET_BYTES_MAX, is_authority, is_pair
from tests.settings.directory import CANARY, FILES, problems, read, with_smallest

KEY = 'keys: [{name: a, lane: fast, secret_file: "%s"}]'


def test_a_secret_file_is_stripped_hashed_and_taken_from_the_file_s_directory() -> None:
    [key] = read(with_smallest(KEY % "cron")).settings.keys
    assert key.digest == hashlib.sha256(f"{CANARY}-file".encode()).digest()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must not be empty"),
        (b" \n", "must not be empty"),
        (b"a b", "visible ASCII"),
        (b"a\nb\n", "visible ASCII"),
        ("schlüssel".encode(), "more than ASCII"),
        (b"x" * (SECRET_BYTES_MAX + 1), "too large"),
    ],
)
def test_what_is_no_secret(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "s").write_bytes(content)
    [problem] = problems(with_smallest(KEY % (tmp_path / "s")))
    assert problem.path == "keys[0].secret_file" and message in problem.message


def test_only_a_regular_file_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        assert "regular file" in problems(with_smallest(KEY % path))[0].message
    assert "No such file" in problems(with_smallest(KEY % "nowhere"))[0].message


def test_certificates() -> None:
    assert is_pair(FILES / "server.pem", FILES / "server.key")
    assert not is_pair(FILES / "server.pem", FILES / "other.key")
    assert not is_pair(FILES / "server.key", FILES / "server.key")
    assert is_authority(FILES / "server.pem")
    assert not is_authority(FILES / "cron")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("server: {tls: {cert: server.pem, key: other.key}}", "server.tls.cert"),
        ("server: {tls: {cert: server.pem, key: nowhere}}", "server.tls.key"),
        ("server: {tls: {cert: server.pem}}", "server.tls.key"),
    ],
)
def test_certificates_are_checked_where_they_are_named(text: str, path: str) -> None:
    assert [problem.path for problem in problems(with_smallest(text))] == [path]
