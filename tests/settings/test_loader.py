"""Is every mistake found, at its place, with its remedy, together with all others, and without a secret?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from proxy.settings.document import Node, parse
from proxy.settings.loader import load, loads
from proxy.settings.problems import SettingsError
from proxy.settings.reference import sections
from tests.settings.directory import CANARY, ENVIRON, EVERY_KEY, EXAMPLE, FILES, ROOT, lines, problems, read, with_smallest


@pytest.mark.parametrize("text", [EXAMPLE, EVERY_KEY], ids=["example", "every key"])
def test_the_examples_are_good(text: str) -> None:
    assert read(text).warnings == []


@pytest.mark.parametrize("name", ["quickstart.yaml", "smallest.yaml"])
def test_the_shipped_files_need_nothing_set(name: str) -> None:
    assert load(ROOT / "config" / name, {}).warnings == []


def test_the_quickstart() -> None:
    settings = load(ROOT / "config" / "quickstart.yaml", {"FAIRLANE_PRIMARY_URL": "http://127.0.0.1:7001"}).settings
    assert {name: [str(b.url) for b in p.backends.values()] for name, p in settings.platforms.items()} == {
        "primary": ["http://127.0.0.1:7001"],
        "standby": ["http://127.0.0.1:8102"],
    }
    assert [platform.cap_streams(name) for platform in settings.platforms.values() for name in platform.backends] == [2, 2]
    assert [(key.name, key.lane) for key in settings.keys] == [("paying", "fast"), ("free", "slow")]


# Misspellings ---------------------------------------------------------------------------------------------------------


def keys_of_sections(text: str) -> Iterator[Node]:
    """Every key of a file that is the file format's own, not a name the operator chose."""
    known = {key for section in sections() for key in section.file_keys()}
    root = parse(text, ENVIRON, lambda *_: None)
    assert root is not None
    ahead, chosen = [(root, False)], {"lanes", "platforms", "pools", "backends", "models", "headers", "split"}
    while ahead:
        node, holds_names = ahead.pop()
        for step, child in (node.children or {}).items():
            if isinstance(step, str) and not holds_names:
                assert step in known
                yield child
            ahead.append((child, isinstance(step, str) and not holds_names and step in chosen and not child.is_list))


def misspellings(word: str) -> set[str]:
    doubled, dropped, swapped = word + word[-1], word[:1] + word[2:], word[1] + word[0] + word[2:]
    return {doubled, dropped, swapped} - {word}


def key_of(node: Node) -> str:
    return node.path.rpartition(".")[2]


EVERY_PLACE = [
    pytest.param(text, node, wrong, id=f"{name}:{node.path}:{wrong}")
    for name, text in (("example", EXAMPLE), ("every", EVERY_KEY))
    for node in keys_of_sections(text)
    for wrong in sorted(misspellings(key_of(node)))
]


@pytest.mark.parametrize(("text", "node", "wrong"), EVERY_PLACE)
def test_a_misspelt_key_is_found_where_it_is_with_the_right_spelling(text: str, node: Node, wrong: str) -> None:
    right, (line, column) = key_of(node), node.key_mark
    rows = text.split("\n")
    row = rows[line - 1]
    assert row[column - 1 :].startswith(right)
    rows[line - 1] = f"{row[: column - 1]}{wrong}{row[column - 1 + len(right) :]}"
    found = problems("\n".join(rows))
    [problem] = [problem for problem in found if (problem.line, problem.column) == (line, column)]
    assert problem.path == f"{node.path.removesuffix(right)}{wrong}".removeprefix(".")
    assert problem.message == f'is no key here; did you mean "{right}"?'


def test_every_key_there_is_stands_in_the_file_of_every_key() -> None:
    used = {(re.sub(r"\[\d+\]", "[]", node.path)) for node in keys_of_sections(EVERY_KEY)}
    words = {path.rpartition(".")[2] for path in used}
    assert words == {key for section in sections() for key in section.file_keys()}


# One by one -----------------------------------------------------------------------------------------------------------

MISTAKES = [
    ("lanes: {fast: {max_wait: 10}}", "26: lanes.fast.max_wait: must be a duration with its unit, such as 250ms, 10s, 1m30s or 2h"),
    (
        "lanes: {fast: {share: 60%}, slow: {share: 40%}}",
        "23: lanes.fast.share: must be smaller: the shares of all lanes add up to 100% or more",
    ),
    ("lanes: {}", "1: lanes: must name at least one lane"),
    ("lanes: [fast]", "1: lanes: must be a mapping of names to values"),
    (
        "lanes: {fa st: {}, fast: {}}",
        '9: lanes."fa st": must be a name of at most 63 letters, digits, dots, dashes and underscores, beginning with a letter or digit',
    ),
    ("lanes: {fast: }", "15: lanes.fast: has no value; give it one ({} for all the defaults), or remove the key"),
    ("lanes: {fast: {reserve: -1}}", "25: lanes.fast.reserve: must be at least 0"),
    ("server: {expose: yes}", "18: server.expose: must be true or false"),
    ("server: {max_body: 64}", "20: server.max_body: must be a size with its unit, such as 64KiB, 8MiB or 1GiB"),
    ('server: {listen: ":8080"}', "18: server.listen: must name a host: 127.0.0.1 for this machine alone, 0.0.0.0 or [::] for everyone"),
    ('server: {admin: "127.0.0.1:8080"}', "17: server.admin: must be another address than listen"),
    ("server: {drain: {grace: 3m}}", "25: server.drain.grace: must not be longer than the drain's timeout"),
    ("server: {trusted_proxies: [10.0.0.1/8]}", "28: server.trusted_proxies[0]: must be a network such as 10.0.0.0/8, or one address"),
    ("server: 7", "9: server: must be a mapping of keys to values"),
    ("keys: {}", "1: keys: must be a list"),
    ("keys: [{name: a, lane: fast}]", '8: keys[0]: needs a secret: give one of "secret", "secret_sha256" and "secret_file"'),
    (
        "keys: [{name: a, lane: fast, secret: x, secret_file: cron}]",
        '54: keys[0].secret_file: cannot stand beside "secret"; keep one of them',
    ),
    ("keys: [{name: a, lane: fast, secret: 7}]", "38: keys[0].secret: must be text; put it in quotes"),
    ('keys: [{name: a, lane: fast, secret: ""}]', "38: keys[0].secret: must not be empty"),
    ("keys: [{name: a, lane: fast, secret: x, limits: {rpm: 1}}]", "41: keys[0].limits: is not available yet"),
    ("keys: [{lane: fast, secret: x}]", "8: keys[0].name: is required"),
    (
        "keys: [{name: a, lane: fast, secret: x}, {name: a, lane: fast, secret: y}]",
        "49: keys[1].name: is the name of two keys; the first is keys[0]",
    ),
    (
        "keys: [{name: a, lane: fast, secret: x}, {name: b, lane: fast, secret: x}]",
        '72: keys[1].secret: is also the secret of key "a"; a caller must be one or the other',
    ),
    ("keys: [{name: a, lane: fast, secret: x, traffic: bulk}]", "50: keys[0].traffic: must be 'interactive' or 'batch'"),
    (
        "routes: [{pool: chat}, {when: {lane: fast}, pool: chat}]",
        "24: routes[1]: can never match: routes[0] takes all that it could; put this one before it, or remove it",
    ),
    ("routes: [{when: {lane: fast}}]", "10: routes[0]: needs a pool, or a split"),
    ("routes: [{pool: chat, split: {chat: 1}}]", '23: routes[0].split: cannot stand beside "pool"; keep one of them'),
    ("routes: [{split: {chat: 0}}]", "11: routes[0].split: must give weights of zero or more, and one above zero"),
    (
        "routes: [{when: {text: '('}, pool: chat}]",
        "24: routes[0].when.text: must be a regular expression (in single quotes, so that YAML leaves backslashes alone)",
    ),
    (
        'routes: [{when: {turns: "< 5 or unset"}, pool: chat}]',
        '25: routes[0].when.turns: must not say "or unset": every request has this number',
    ),
    ("redis: {url: x}", "1: redis: is not available yet"),
    (
        "dashboards: {}",
        '1: dashboards: is no key here; there are "server", "lanes", "keys", "anonymous", "platforms", "pools" and "routes"',
    ),
]


LINE = with_smallest("").count("\n")


@pytest.mark.parametrize(("text", "line"), MISTAKES)
def test_a_mistake_is_told_with_its_place_and_remedy(text: str, line: str) -> None:
    assert lines(with_smallest(text)) == [f"f:{LINE}:{line}"]


# Platforms and pools need a file of their own, all on one line: columns are found by the word that is wrong.
HEAD = "anonymous: {lane: fast}\n"
PLATFORM = 'platforms: {g: {max_streams: 8, backends: {a: {url: "http://h"}}, %s}}\npools: {chat: {primary: g}}\n' + HEAD
BACKENDS = "platforms: {g: {max_streams: 8, backends: %s}}\npools: {chat: {primary: g}}\n" + HEAD
TWO_PLATFORMS = 'platforms: {g: {max_streams: 8, backends: ["http://h"]}, h: {max_streams: 8, backends: ["http://i"]}}\n'
POOL = TWO_PLATFORMS + "pools: {chat: {primary: g, %s}}\n" + HEAD


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        (PLATFORM % "smoke: 24", "platforms.g.smoke", "must be a duration with its unit, such as 250ms, 10s, 1m30s or 2h"),
        (PLATFORM % "smoke: 0s", "platforms.g.smoke", "must be more than zero"),
        (POOL % "warm: 1%", "pools.chat.warm", "needs a standby to keep warm"),
        (POOL % "warm: 1", "pools.chat.warm", "needs a standby to keep warm"),
        (POOL % "warm: 101%", "pools.chat.warm", "must be a share from 0% to 100%: 10% or 0.1"),
        (PLATFORM % "api_key: x, api_key_file: cron", "platforms.g.api_key_file", 'cannot stand beside "api_key"; keep one of them'),
        (PLATFORM % "models: {}", "platforms.g.models", "must list at least one model; without this key every model is served"),
        (PLATFORM % "cost: {}", "platforms.g.cost", "needs per_hour, or input_per_million and output_per_million"),
        (PLATFORM % "cost: {per_hour: -1}", "platforms.g.cost.per_hour", "must be at least 0"),
        (PLATFORM % "headers: {Host: x}", "platforms.g.headers.Host", "must be another header: Fairlane writes this one itself"),
        (PLATFORM % 'headers: {a: "x\\r\\ny: z"}', "platforms.g.headers.a", "must be text of printable ASCII characters, in quotes"),
        (PLATFORM % "tls: {cert: server.pem}", "platforms.g.tls", "needs both cert and key, or neither"),
        (PLATFORM % "tls: {ca: cron}", "platforms.g.tls.ca", "must be a PEM file with certificates of authorities"),
        (PLATFORM % "startup: 0s", "platforms.g.startup", "must be more than zero"),
        (BACKENDS % "[]", "platforms.g.backends", "must name at least one"),
        (BACKENDS % "{}", "platforms.g.backends", "must name at least one"),
        (BACKENDS % '["http://h", "nowhere"]', "platforms.g.backends[1]", "must be a URL that begins with http:// or https://"),
        (BACKENDS % '[{url: "http://h", max_streams: 0}]', "platforms.g.backends[0].max_streams", "must be from 1 to 1000000 streams"),
        (BACKENDS % '{a: {url: "http://h", max_streams: {min: 1}}}', "platforms.g.backends.a.max_streams.min", "is not available yet"),
        (BACKENDS % '{a: {url: "http://h", max_streams: {rps: 1}}}', "platforms.g.backends.a.max_streams.generation_time", "is required"),
        (
            BACKENDS % '{a: {url: "http://h", max_streams: {rps: 1, generation_time: 8}}}',
            "platforms.g.backends.a.max_streams.generation_time",
            "must be a duration with its unit, such as 250ms, 10s, 1m30s or 2h",
        ),
        (BACKENDS % '{a: {url: "http://h", weight: 0}}', "platforms.g.backends.a.weight", "must be more than 0"),
        (PLATFORM.replace("max_streams: 8, ", "") % "probe: none", "platforms.g.backends.a", "needs max_streams, here or on its platform"),
        (POOL % "slo: {ttft: 1s}, profile: chat", "pools.chat.slo", 'cannot stand beside "profile"; keep one of them'),
        (POOL % "profile: speech", "pools.chat.profile", "must be 'voice', 'chat', 'code', 'writing' or 'batch'"),
        (POOL % "standby: g", "pools.chat.standby", "is also the primary; a platform cannot stand in for itself, name another"),
        (POOL % "standby: [h, g]", "pools.chat.standby[1]", "is also the primary; a platform cannot stand in for itself, name another"),
        (POOL % "standby: [h, h]", "pools.chat.standby", "names the same one twice"),
        (POOL % "overflow: standby", "pools.chat.overflow", "needs a standby to send to"),
        (POOL % "queue: {places: 3, buffer: 10%}", "pools.chat.queue.buffer", 'cannot stand beside "places"; keep one of them'),
        (POOL % "continue: x", "pools.chat.continue", "must be true or false"),
        (POOL % "contine: true", "pools.chat.contine", 'is no key here; did you mean "continue"?'),
        (
            POOL % "continue: true, retries: {attempts: 1}",
            "pools.chat.continue",
            "needs retries.attempts of at least 2: the rest is one",
        ),
        (PLATFORM % "continues: true", "platforms.g.continues", "must be 'flags', 'prefill' or 'none'"),
        (
            (PLATFORM % "continues: none").replace("primary: g", "primary: g, continue: true"),
            "pools.chat.continue",
            "needs a platform that does: all of this pool say continues: none",
        ),
        (POOL % "hedge: {}", "pools.chat.hedge.after", "is required"),
        *(
            (
                POOL % f"hedge: {wrong}",
                "pools.chat.hedge",
                "must say when: {after: p95}, or {after: 800ms}; leave it out for one attempt at a time",
            )
            for wrong in ("p95", "true", "off", "[p95]")
        ),
        (POOL % "hedge: {aftr: p95}", "pools.chat.hedge.aftr", 'is no key here; did you mean "after"?'),
        *(
            (
                POOL % f"hedge: {{after: {wrong}}}",
                "pools.chat.hedge.after",
                "must be a percentile from p50 to p99, such as p95, or a duration, such as 800ms",
            )
            for wrong in ("p100", "p5", "95", "0s", "P95", "95%")
        ),
        (
            POOL % "hedge: {after: p95}, retries: {attempts: 1}",
            "pools.chat.hedge",
            "needs retries.attempts of at least 2: the second attempt is one",
        ),
        (
            POOL % "hedge: {after: p95}, retries: {after_send: false}",
            "pools.chat.hedge",
            "may pay for a generation twice, which retries.after_send: false forbids",
        ),
        (POOL % "retries: {attempts: 0}", "pools.chat.retries.attempts", "must be at least 1"),
        (POOL % "demand: {rps: 0, generation_time: 8s}", "pools.chat.demand.rps", "must be more than zero"),
        (POOL % "model: 4", "pools.chat.model", "must be text; put it in quotes"),
        *((POOL % f"{key}: x", f"pools.chat.{key}", "is not available yet") for key in ("yields", "preempt", "spill", "share")),
    ],
)
def test_a_mistake_in_a_platform_or_pool(text: str, path: str, message: str) -> None:
    [problem] = [problem for problem in problems(text) if problem.path.startswith(("platforms.g", "pools.chat"))]
    assert (problem.path, problem.message) == (path, message)
    row, words = text.split("\n")[problem.line - 1], [word for word in re.split(r"\W", path) if word and not word.isdigit()]
    key = words[-2] if message == "is required" else words[-1]
    before, after = row[: problem.column - 1], row[problem.column - 1 :]
    assert after.startswith(key) or before.endswith(f"{key}: ") or path.endswith("]")


def test_all_problems_are_told_together_in_the_order_of_the_file() -> None:
    text = """\
server: {expose: on}
lanes:
  fast: {max_wait: 4}
  <<: {}
keys:
  - {nmae: a, secret: "${NONE}", lane: fsat}
platforms:
  g: {max_streams: 0, backends: ["x"]}
  g: {}
pools:
  a: {primary: h, spill: 1}
  b: {primary: g}
"""
    assert lines(text) == [
        "f:1:1: routes: are required with several pools: say which requests go to which, the last rule with a pool alone",
        "f:1:18: server.expose: must be true or false",
        "f:3:20: lanes.fast.max_wait: must be a duration with its unit, such as 250ms, 10s, 1m30s or 2h",
        'f:4:3: lanes."<<": is a merge key; those are not read, write the values out',
        'f:6:6: keys[0].nmae: is no key here; did you mean "name"?',
        "f:6:23: keys[0].secret: needs the environment variable NONE, which is not set; set it, or write ${NONE:-default}",
        'f:6:40: keys[0].lane: names no lane of this file; did you mean "fast"?',
        "f:8:20: platforms.g.max_streams: must be from 1 to 1000000 streams",
        "f:8:34: platforms.g.backends[0]: must be a URL that begins with http:// or https://",
        "f:9:3: platforms.g: is given twice; the first is on line 8",
        'f:11:16: pools.a.primary: names no platform of this file; there is "g"',
        "f:11:19: pools.a.spill: is not available yet",
    ]


# Secrets --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [EXAMPLE, EVERY_KEY])
def test_no_secret_shows_in_what_is_kept(text: str) -> None:
    settings = read(text).settings
    for shown in (
        repr(settings),
        str(settings),
        str(settings.model_dump()),
        settings.model_dump_json(),
        repr(settings.keys),
        str(settings.platforms),
    ):
        assert CANARY not in shown
        assert not any(key.digest.hex() in shown or repr(key.digest) in shown for key in settings.keys)


def test_a_secret_in_a_wrong_place_does_not_show() -> None:
    refused = 0
    for place in re.finditer(r"(?<=: )[^\s,{}\[\]#]+|(?<=\[)[^\s,{}\[\]#]+|\b\w+(?=:)", EVERY_KEY):
        text = f'{EVERY_KEY[: place.start()]}"${{ACME_KEY}}"{EVERY_KEY[place.end() :]}'
        try:
            read(text)
        except SettingsError as error:
            refused += 1
            assert CANARY not in f"{error!s}{error!r}{error.problems}"
            assert error.__context__ is None or error.__suppress_context__
    assert refused > 100


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/nowhere/f.yaml", "/", "a\0b"])
def test_a_file_that_cannot_be_read_is_a_problem(path: str) -> None:
    with pytest.raises(SettingsError, match="1:1: file: cannot be read"):
        load(path, {})


def test_relative_paths_start_from_the_file_s_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(FILES / "every_key.yaml", ENVIRON).settings.server.tls is not None


def test_a_thousand_backends_are_read() -> None:
    urls = ", ".join(f'"http://10.0.{n // 250}.{n % 250}:8000"' for n in range(1000))
    settings = read(
        f"platforms: {{g: {{max_streams: 8, backends: [{urls}]}}}}\npools: {{p: {{primary: g}}}}\nanonymous: {{lane: fast}}"
    ).settings
    assert list(settings.platforms["g"].backends)[-1] == "g-1000"


# Anything at all ------------------------------------------------------------------------------------------------------


def survives(data: bytes) -> None:
    try:
        loads(data, ENVIRON, directory=FILES)
    except SettingsError as error:
        assert error.problems
        for problem in error.problems:
            assert "\n" not in str(problem) and problem.line >= 1 and problem.column >= 1
            assert CANARY not in str(problem)
            assert not problem.message[0].isupper(), problem  # pydantic's words, not ours


VALUES = re.compile(r"(?<=: )(\{[^{}]*\}|\[[^\[\]]*\]|[^\s,{}\[\]#]+)|(?<=\[)[^\s,{}\[\]#]+")


@pytest.mark.parametrize("other", ["{}", "[[]]", "{a: 1}", "[{1: ~}]", "true", "1e-9", "'${OWN_KEY}'"])
def test_every_value_replaced_by_one_of_another_kind(other: str) -> None:
    for place in VALUES.finditer(EVERY_KEY):
        survives(f"{EVERY_KEY[: place.start()]}{other}{EVERY_KEY[place.end() :]}".encode())


@given(st.binary(max_size=300))
@example(b"\xef\xbb\xbf")
@example(b"%YAML 1.99999999999999999999999\n---\na: 1")
@example(b'a: "\\UFFFFFFFF"')
@example(b'a: "\\uD800"')
@example(b"[" * 5000)
@example(b"{a: " * 5000)
@example(b"- " * 5000)
@example(b"? " * 5000)
def test_random_bytes(data: bytes) -> None:
    survives(data)


PIECES = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ": ",
    ",",
    "\n",
    "  ",
    "-",
    "- ",
    "'",
    '"',
    "#",
    "&a",
    "*a",
    "!!str ",
    "<<",
    "~",
    "null",
    "true",
    "0",
    "-1",
    "1e9",
    "10%",
    "5s",
    "${",
    "${ACME_KEY}",
    "$$",
    "|",
    ">",
    "?",
    "%",
    "\t",
    "\0",
    "é",
    "\u2028",
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """The example with parts cut out, doubled, swapped for others, or with odd pieces put in."""
    text = draw(st.sampled_from([EXAMPLE, EVERY_KEY]))
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 30)))
        other = draw(st.integers(0, len(text)))
        new = draw(st.sampled_from(["", text[start:end] * 2, text[other : other + end - start], *PIECES]) | st.text(max_size=4))
        text = text[:start] + new + text[end:]
    return text.encode("utf-8", "surrogatepass")


@given(mutated())
@hypothesis_settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_mutations_of_the_example(data: bytes) -> None:
    survives(data)
