"""Which part of the comparison was asked for? `python -m lab.compare setup | run | table | memory`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from lab.compare import install, memory, page
from lab.compare.contestants import FIRST_PORT, PEERS, SUBJECT, contestants
from lab.compare.processes import NotUp
from lab.compare.result import Result
from lab.compare.rounds import Asked, run
from lab.compare.tools import NotInstalled
from lab.compare.works import WORKS


def main() -> int:
    """0: done; 1: nothing could be measured, or the subject did not come up; 2: wrong usage."""
    parser = _parser()
    asked = parser.parse_args()
    try:
        if asked.verb == "setup":
            return install.setup()
        if asked.verb == "table":
            page.write(asked.page, page.COMPARISON, page.table(_kept(asked.json)))
            return 0
        return _run(asked) if asked.verb == "run" else _memory(asked)
    except (NotInstalled, NotUp) as problem:
        print(problem, file=sys.stderr)
        return 1
    except (OSError, ValueError) as problem:
        parser.error(str(problem))


def _run(asked: argparse.Namespace) -> int:
    unknown = [work for work in _listed(asked.work) if work not in WORKS]
    if unknown:
        raise ValueError(f"--work: {unknown[0]!r} is not one of {', '.join(WORKS)}")
    with tempfile.TemporaryDirectory(prefix="fairlane-compare-") as folder:
        names = [SUBJECT, *(name for name in _listed(asked.peers) if name != SUBJECT)]
        taking_part = contestants(names, Path(folder), asked.first_port, asked.subject, asked.port)
        works = [WORKS[work] for work in _listed(asked.work)]
        wanted = Asked(taking_part, works, asked.rounds, asked.seconds, asked.first_port)
        result = run(wanted, Path(folder), lambda text: print(text, flush=True))
    if asked.json is not None:
        asked.json.write_text(json.dumps(result.as_json(), indent=1) + "\n")
    if asked.page is not None:
        page.write(asked.page, page.COMPARISON, page.table(result))
    return 0 if all(SUBJECT in found for found in result.works.values()) else 1


def _memory(asked: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="fairlane-memory-") as folder:
        held = memory.measure(memory.CASES, Path(folder), asked.first_port)
    if asked.page is not None:
        page.write(asked.page, page.MEMORY, memory.table(held))
    return 0


def _kept(file: Path) -> Result:
    try:
        return Result.from_json(json.loads(file.read_text()))
    except (KeyError, TypeError) as problem:
        raise ValueError(f"{file} is not a result of `python -m lab.compare run --json`: {problem}") from None


def _listed(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.compare", description="Measure Fairlane beside other proxies, in one run.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("setup", help="install the peers: nginx, haproxy, envoy, vllm-router, sglang-router, and wrk and gcc")
    asked = verbs.add_parser("run", help="measure")
    asked.add_argument("--work", default=",".join(WORKS), help=f"which of {','.join(WORKS)} (default: all)")
    asked.add_argument("--peers", default=",".join(PEERS), help=f"beside whom (default: {','.join(PEERS)}; also litellm)")
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--seconds", type=int, default=5, help="of each round; streams take two more")
    asked.add_argument("--subject", help="another command that starts the subject (default: fairlane serve of this environment)")
    asked.add_argument("--port", type=int, help="where that one listens")
    asked.add_argument("--first-port", type=int, default=FIRST_PORT, help="the engine's; the contestants' follow (default: %(default)s)")
    asked.add_argument("--json", type=Path, metavar="FILE", help="keep the result")
    asked.add_argument("--page", type=Path, metavar="FILE", help="write the table between the markers of this page")
    table = verbs.add_parser("table", help="write the table of a kept result")
    table.add_argument("json", type=Path, metavar="FILE")
    table.add_argument("page", type=Path, metavar="PAGE")
    holds = verbs.add_parser("memory", help="what a live stream holds, and a waiting request")
    holds.add_argument("--first-port", type=int, default=FIRST_PORT)
    holds.add_argument("--page", type=Path, metavar="FILE", help="write the table between the markers of this page")
    return parser


if __name__ == "__main__":
    sys.exit(main())
