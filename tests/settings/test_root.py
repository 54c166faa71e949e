"""What do the frozen settings say: defaults by place, caps, targets?"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from pydantic import ValidationError

from proxy.settings.lanes import Lane
from proxy.settings.values import Address, Comparison, Url
from tests.settings.directory import CANARY, EVERY_KEY, EXAMPLE, SMALLEST, problems, read, with_smallest


def test_the_smallest_file_has_all_defaults() -> None:
    settings = read(SMALLEST).settings
    assert [(name, lane.max_wait_s, lane.share, lane.reserve) for name, lane in settings.lanes.items()] == [
        ("fast", 4.0, 0, 0),
        ("slow", 20.0, Fraction(1, 10), 0),
    ]
    [route] = settings.routes
    assert route.targets == (("chat", 1),) and not list(route.when.conditions)
    pool = settings.pools["chat"]
    assert (pool.platforms, pool.model, pool.queue.places, pool.queue.buffer, pool.demand) == (("gpu",), None, None, Fraction(1, 5), None)
    assert (pool.timeouts.connect_s, pool.timeouts.first_token_s, pool.timeouts.idle_s, pool.timeouts.total_s) == (3, 60, 60, 900)
    assert (pool.retries.attempts, pool.retries.after_send, pool.failback.hold_s, pool.failback.ramp_s) == (2, True, 300, 120)
    server = settings.server
    assert (server.listen, server.admin, server.max_body_bytes) == (Address("127.0.0.1", 8080), Address("127.0.0.1", 9090), 64 << 20)
    assert (server.drain.grace_s, server.drain.timeout_s, server.expose, server.access_log) == (5, 120, False, "stderr")


@pytest.mark.parametrize(
    ("lanes", "waits", "shares"),
    [
        ("{fast: {}, slow: {}}", [4, 20], ["0", "1/10"]),
        ("{fast: {}, b: {}, c: {max_wait: 1s, share: 0%}}", [4, 20, 1], ["0", "0", "0"]),
        ("{only: {}, fast: {share: 89%}}", [4, 20], ["0", "89/100"]),
        ("{fast: {}}", [4], ["1/10"]),
    ],
)
def test_what_a_lane_is_by_its_place(lanes: str, waits: list[float], shares: list[str]) -> None:
    found = read(with_smallest(f"lanes: {lanes}")).settings.lanes.values()
    assert [lane.max_wait_s for lane in found] == waits
    assert [str(lane.share) for lane in found] == shares
    assert Lane().share == 0  # places are filled in what was read, never in the model's own default


@pytest.mark.parametrize(
    ("cap", "streams"),
    [
        ("16", 16),
        ("{rps: 2, generation_time: 8s}", 16),
        ("{rps: 1.1, generation_time: 50s}", 55),
        ("{rps: 0.1, generation_time: 30s}", 3),
        ("{rps: 1.1, generation_time: 50001ms}", 56),
        ('"${CAP}"', 7),
        ("${CAP}", 7),
    ],
)
def test_caps_are_exact(cap: str, streams: int) -> None:
    text = (
        f"platforms:\n  g:\n    backends: ['http://h']\n    max_streams: {cap}\npools: {{p: {{primary: g}}}}\nanonymous: {{lane: fast}}\n"
    )
    assert read(text, CAP="7").settings.platforms["g"].cap_streams("g-1") == streams


def test_a_backend_s_own_cap_wins() -> None:
    own = read(EVERY_KEY).settings.platforms["own"]
    assert {name: own.cap_streams(name) for name in own.backends} == {"own-a": 4, "own-b": 55, "own-c": 8}
    with pytest.raises(KeyError):
        own.cap_streams("own-d")


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("profile: voice", (0.3, 0.1, 5.0)),
        ("profile: chat", (1.0, 0.15, 10.0)),
        ("profile: code", (0.5, 0.08, 5.0)),
        ("profile: writing", (2.0, 0.2, 20.0)),
        ("profile: batch", (None, None, 60.0)),
        ("slo: {ttft: 3s}", (3.0, None, 30.0)),
        ("slo: {tpot: 1s}", (None, 1.0, 60.0)),
        ("profile: chat, timeouts: {first_token: 7s, total: 1h}", (1.0, 0.15, 7.0)),
    ],
)
def test_targets_and_the_first_token_timeout_they_ask_for(targets: str, expected: tuple[float | None, ...]) -> None:
    pool = read(SMALLEST.replace("primary: gpu", f"primary: gpu, {targets}")).settings.pools["chat"]
    assert (pool.slo.ttft_s, pool.slo.tpot_s, pool.timeouts.first_token_s) == expected
    assert pool.retries.attempts == (3 if "batch" in targets else 2)


def test_what_the_file_of_every_key_becomes() -> None:
    settings = read(EVERY_KEY).settings
    own, rented = settings.platforms.values()
    assert [str(backend.url) for backend in own.backends.values()] == [
        "https://10.0.0.1:8443/base",
        "https://10.0.0.2:443/v1",
        "https://10.0.0.3:443",
    ]
    assert list(rented.backends) == ["rented-1", "rented-2"]
    assert own.backends["own-b"].url == Url("https", "10.0.0.2", 443, "/v1")
    assert own.credential is not None and own.credential.get_secret_value() == f"{CANARY}-OWN_KEY"
    assert rented.credential is not None and rented.credential.get_secret_value() == f"{CANARY}-file"
    assert {name: value.get_secret_value() for name, value in own.headers.items()} == {"x-team": f"{CANARY}-TEAM_TOKEN"}
    assert settings.server.access_log == "off"
    demand = settings.pools["chat"].demand
    assert demand is not None and (demand.rps, demand.generation_time_s, demand.streams) == (Decimal(3), Decimal(8), Fraction(24))
    assert settings.pools["bulk"].queue.places == 0
    when = settings.routes[0].when
    assert (when.prompt_tokens, when.max_tokens, when.turns) == (Comparison("<=", 500), Comparison("<", 256, True), Comparison("==", 1))
    assert (when.tools, when.json_mode, when.images, when.path) == (False, True, False, ("/v1/chat/*",))
    assert settings.routes[1].targets == (("chat", 95), ("bulk", 5))


def test_settings_are_frozen_and_equal_when_the_file_is() -> None:
    settings = read(EXAMPLE).settings
    assert settings == read(EXAMPLE).settings
    assert settings != read(EXAMPLE, ACME_KEY="other").settings
    with pytest.raises(ValidationError):
        settings.server.expose = True


def test_names_mean_one_thing() -> None:
    body = "platforms: {%s}\npools: {p: {primary: g}}\nanonymous: {lane: fast}\n"
    one = 'g: {max_streams: 1, backends: {g: "http://h"}}'
    assert read(body % one).warnings == []
    two = one + ', h: {max_streams: 1, backends: {g: "http://i"}}'
    [problem] = problems(body % two)
    column = (body % two).index('g: "http://i"') + 1
    assert str(problem) == f'f:1:{column}: platforms.h.backends.g: is also a backend of platform "g"; give one of them another name'
    three = 'g: {max_streams: 1, backends: {a: "http://h", g: "http://i"}}'
    [problem] = problems(body % three)
    assert problem.message == "is also the name of a platform; give one of them another name"
