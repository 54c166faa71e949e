"""What must hold for any bytes at all? One target each for heads and bodies, answers, streams, JSON bodies and files.

`test_fuzz` gives them what Hypothesis thinks of, in every `make test`; `python -m tests.reliability.fuzz TARGET SECONDS` lets
atheris look for paths (or, where it is not installed, plain mutation), in `make soak`.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from policies.tokens import TokenEstimate
from proxy.endpoints import Api
from proxy.http1.framing import Head
from proxy.identity import Identities, Identity
from proxy.intake import Admitted, Reading, Reception
from proxy.settings.loader import load
from proxy.settings.problems import SettingsError
from proxy.sse import StreamWatcher, UnaryWatcher
from tests.reliability.corpora import corpus
from tests.reliability.memory import DoorInMemory, taken
from tests.wire import A, J, ev, scripts

_TARGET = re.compile(rb"/[\x21-\x7e]*")
_NO_MATTER_HOW = 3  # cuts tried of each input


def _cuts(data: bytes) -> list[list[bytes]]:
    if len(data) < 2:
        return [[data]]
    chance = random.Random(len(data) ^ data[0] ^ data[-1])
    return [[data[:at], data[at:]] for at in (chance.randrange(1, len(data)) for _ in range(_NO_MATTER_HOW))]


def requests(data: bytes) -> None:
    """The front door: the verdict does not depend on cuts, and what is let in is one plain request."""
    door = DoorInMemory()
    whole = door.verdict([data])
    for _, target, _ in whole.begun:
        assert _TARGET.fullmatch(target)
    for pieces in _cuts(data):
        assert door.verdict(pieces) == whole, "the verdict depends on the cut"


def answers(data: bytes) -> None:
    """The way to a backend: what is taken does not depend on cuts; a status is one."""
    whole = taken([data], fin=True)
    assert whole.status == 0 or 200 <= whole.status <= 599
    for pieces in _cuts(data):
        cut = taken(pieces, fin=True)
        assert (cut.status, cut.body, cut.end) == (whole.status, whole.body, whole.end), "the answer depends on the cut"


def streams(data: bytes) -> None:
    """The watchers: nothing raises, and what is concluded does not depend on cuts."""
    for api in Api:
        whole = StreamWatcher(api)
        whole.feed(data)
        for pieces in _cuts(data):
            cut = StreamWatcher(api)
            for piece in pieces:
                cut.feed(piece)
            for name in ("first_token", "finished", "done", "error", "usage", "tokens", "closing"):
                assert getattr(cut, name) == getattr(whole, name), f"{name} depends on the cut"
    unary = UnaryWatcher()
    unary.feed(data)
    _ = unary.usage


_RECEPTION = Reception(
    Identities([], Identity("anonymous", 0, "interactive", None, None)), ["fast", "slow"], TokenEstimate(), max_body_bytes=1 << 20
)


def bodies(data: bytes) -> None:
    """Reception: any body is read or refused; a rename or a priority leaves a body that reads the same otherwise."""
    head = Head("POST", b"/v1/chat/completions", "1.1", [(b"content-type", b"application/json")])
    admitted = _RECEPTION.admit(head)
    assert isinstance(admitted, Admitted)
    reading = _RECEPTION.read(data, admitted, "req-1")
    if not isinstance(reading, Reading):
        return
    without = reading.prioritised(None)
    again = _RECEPTION.read(without.body, admitted, "req-1")
    assert isinstance(again, Reading) and not again.gives_priority, "it can no longer be read, or still has a priority"
    renamed = _RECEPTION.read(reading.prioritised(1).renamed("other"), admitted, "req-1")
    assert isinstance(renamed, Reading) and renamed.request.model == "other"


def files(data: bytes) -> None:
    """The loader: any file is read, or its problems are told."""
    with TemporaryDirectory() as directory:
        file = Path(directory, "fairlane.yaml")
        file.write_bytes(data)
        try:
            load(str(file), {})
        except SettingsError:
            pass


TARGETS: dict[str, Callable[[bytes], None]] = {
    "requests": requests, "answers": answers, "streams": streams, "bodies": bodies, "files": files,
}  # fmt: skip


def seeds(name: str) -> list[bytes]:
    """What to begin with."""
    root = Path(__file__).resolve().parents[2]
    return {
        "requests": [entry.raw for entry in corpus("requests")] + [A + b"Content-Length: 57\r\n\r\n" + J],
        "answers": [entry.raw for entry in corpus("answers")] + [scripts.sse(scripts.chat_events(2))],
        "streams": [
            b"".join(scripts.chat_events(2)),
            b"".join(scripts.message_events(2)),
            ev("a") + b'data: {"error":{}}\r\n\r\n: ping\n\n',
        ],
        "bodies": [J, b'{"priority":1,"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"tools":[{}]}'],
        "files": [path.read_bytes() for path in sorted((root / "config").glob("*.yaml"))],
    }[name]


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The same with a few bytes changed, doubled, dropped or moved."""
    out = bytearray(data)
    for _ in range(chance.randrange(1, 5)):
        at, size = chance.randrange(len(out) + 1), chance.choice((1, 1, 2, 4, 16))
        match chance.randrange(5):
            case 0:
                out[at : at + size] = b""
            case 1:
                out[at:at] = chance.choice((b"\r", b"\n", b"\r\n", b"\0", b" ", b"\t", b":", b",", b"0", b"\xff", b'"', b"\\"))
            case 2:
                out[at : at + 1] = bytes([chance.randrange(256)])
            case 3:
                out[at:at] = out[at : at + size]
            case _:
                other = chance.randrange(len(out) + 1)
                out[at:at] = out[other : other + size]
    return bytes(out)


def run(name: str, seconds: float, seed: int = 1) -> int:
    """Plain mutation of the seeds for that long; how many inputs were tried."""
    chance, target, pool, tried = random.Random(seed), TARGETS[name], seeds(name), 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        data = mutated(chance.choice(pool), chance)
        try:
            target(data)
        except Exception:
            print(f"{name}: found by {data!r}", file=sys.stderr)
            raise
        tried += 1
    return tried


def main(name: str, seconds: float) -> None:
    """One target, with atheris if it is here."""
    asyncio.set_event_loop(asyncio.new_event_loop())
    try:
        import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        print(f"{name}: {run(name, seconds)} inputs by mutation (atheris is not installed)")
        return
    with TemporaryDirectory() as directory:
        for number, seed in enumerate(seeds(name)):
            Path(directory, str(number)).write_bytes(seed)
        atheris.instrument_all()
        atheris.Setup([sys.argv[0], f"-max_total_time={int(seconds)}", "-max_len=4096", directory], TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
