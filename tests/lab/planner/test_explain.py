"""Does `fairlane explain` say what the server would do?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.planner.explain import Explanation, Headers, explain, run, told
from proxy.settings.loader import loads

FILE = b"""
lanes: {fast: {max_wait: 4s}, slow: {max_wait: 20s}}
keys:
  - {name: acme, secret: sk-000000000000000000000001, lane: fast}
  - {name: trial, secret: sk-000000000000000000000002, lane: slow, pools: [small], models: [qwen-s]}
  - {name: cron, secret: sk-000000000000000000000003, lane: slow, traffic: batch}
platforms:
  own: {max_streams: 4, backends: {a: "http://127.0.0.1:1", b: {url: "http://127.0.0.1:2", max_streams: 16}}}
  rented: {models: {qwen-l: their-l}, backends: {api: {url: "http://127.0.0.1:3", max_streams: 40}}}
pools:
  small: {primary: own, model: qwen-s}
  large: {primary: rented, standby: own, model: qwen-l, queue: {max_wait: 7s}}
routes:
  - {when: {traffic: batch, lane: fast}, pool: small}
  - {when: {prompt_tokens: "<= 100", max_tokens: "<= 256"}, pool: small}
  - {when: {lane: fast}, pool: large}
"""


def explained(key: str = "acme", headers: Headers | None = None, **body: Any) -> Explanation:
    content = {"model": "qwen-s", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100} | body
    return explain(loads(FILE, {}).settings, json.dumps(content).encode(), key, headers or Headers())


def test_lane_pool_rule_backends_and_waits() -> None:
    found = explained()
    assert (found.lane, found.pool, found.rule) == ("fast", "small", 1)
    assert found.why == "prompt_tokens: <= 100, max_tokens: <= 256"
    assert found.backends == ("b", "a"), "the emptier one first: 1/16 before 1/4"
    assert (found.max_wait_s, found.places, found.attempts) == (4.0, 4, 2)
    assert "routes[1]" in told(found)


def test_the_primary_then_the_standby_under_the_name_the_platform_knows() -> None:
    found = explained(max_tokens=4000)
    assert (found.pool, found.backends, found.platforms) == ("large", ("api", "b", "a"), ("rented", "own"))
    assert (found.asked_model, found.max_wait_s) == ("their-l", 7.0)


def test_headers_lower_the_lane_and_name_the_traffic() -> None:
    assert explained(headers=Headers(lane="slow")).lane == "slow"
    assert explained("cron", headers=Headers(lane="fast")).lane == "slow"
    assert explained(max_tokens=4000, headers=Headers(traffic="batch")).rule == 0


def with_opt_ins(lane: str = "fast", **body: Any) -> Explanation:
    text = FILE.replace(b"queue: {max_wait: 7s}", b"continue: true, hedge: {after: p95}")
    content = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4000, "stream": True} | body
    return explain(loads(text, {}).settings, json.dumps(content).encode(), "acme", Headers(lane=lane))


def test_whether_it_would_be_hedged_and_continued_and_why_not() -> None:
    found = with_opt_ins()
    assert (found.hedged, found.continued, found.not_continued) == ("p95 of the first tokens before it", True, None)
    assert "asked of an idle backend as well" in told(found) and "is continued by another backend" in told(found)
    assert with_opt_ins(stream=False).not_continued == "it asks for no stream"
    found = with_opt_ins(tools=[{"type": "function"}])
    assert (found.hedged is not None, found.continued) == (True, False)
    assert "is not continued: its field tools may make the answer more than plain text" in told(found)
    found = explained(max_tokens=4000, stream=True)
    assert (found.hedged, found.continued, found.not_continued) == (None, False, None)
    assert "late" not in told(found) and "broken" not in told(found)


@pytest.mark.parametrize(
    ("found", "refused", "status"),
    [
        (lambda: explained("trial", model="qwen-l"), "forbidden", 403),
        (lambda: explained("cron", max_tokens=4000), "not_found", 404),
        (lambda: explained(stream="yes"), "malformed", 400),
    ],
)
def test_what_goes_nowhere(found: Any, refused: str, status: int) -> None:
    explanation = found()
    assert (explanation.refused, explanation.status, explanation.backends) == (refused, status, ())
    assert f"{status} {refused}" in told(explanation)


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, request = tmp_path / "f.yaml", tmp_path / "r.json"
    file.write_bytes(FILE)
    request.write_text('{"model": "qwen-s", "messages": []}')
    assert run(file, request, "acme", Headers(), {}, True) == 0
    assert json.loads(capsys.readouterr().out)["lane"] == "fast"
    assert run(file, request, "acne", Headers(), {}, True) == 2
    assert 'did you mean "acme"' in capsys.readouterr().err
    file.write_text("pools: {}")
    assert run(file, request, "acme", Headers(), {}, True) == 1
