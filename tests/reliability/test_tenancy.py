"""Group T (and P05, P10): can a caller be someone else, see what is another's, or reach what is not for callers?"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.proxy.serving import TWO_LANES
from tests.reliability.corpora import corpus
from tests.reliability.files import one, two
from tests.reliability.process import processed
from tests.reliability.watch import KEY_CANARY, PROMPT_CANARY, Watch, watched
from tests.wire import JS, NEXT, A, J, ScriptedBackend, post, scripts

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "tests" / "settings" / "files"
SK = "sk-canary-of-the-platform"


async def raw(proxy: Watch, request: bytes) -> Any:
    async with await proxy.connect() as caller:
        return await caller.ask(request)


def get(target: str, *fields: str, method: str = "GET", host: str = "t") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", f"Host: {host}", *fields, "", ""]).encode("latin-1")


BEARER = "Authorization: Bearer sk-A"


async def test_t01_without_one_valid_key_nothing_is_read_and_nobody_contacted() -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 999999\r\n"
        for fields, status in (
            (b"", 401),
            (b"Authorization: Bearer sk-wrong\r\n", 401),
            (b"Authorization: Bearer \r\n", 401),
            (b"Authorization: Bearer\r\n", 401),
            (b"Authorization: Basic c2stQTo=\r\n", 401),
            (b"x-api-key: sk-wrong\r\n", 401),
            (b"Authorization: Bearer sk-A\r\nAuthorization: Bearer sk-A\r\n", 400),
        ):
            answer = await raw(proxy, head + fields + b"\r\n")
            assert answer.status == status, fields
            assert answer.header("connection") == "close"
        assert (await raw(proxy, post(key=None, path="/v1/chat/completions?api_key=sk-A&key=sk-A"))).status == 401
        assert backend.connections == []


def test_t02_a_key_is_looked_up_by_its_digest() -> None:
    """No comparison byte by byte whose time could tell: what is compared is a hash that the caller cannot steer."""
    text = (ROOT / "proxy" / "identity.py").read_text()
    assert "sha256" in text or "blake2" in text
    assert not re.search(r"secret\s*==|==\s*secret|startswith\(secret", text)


async def test_t04_no_spelling_of_a_path_or_host_gets_round_the_key() -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        for target in (
            "/healthz/../v1/models",
            "//v1/models",
            "/v1/models;a",
            "/V1/models",
            "/v1//models",
            "/v1/models/..",
            "/health/../v1/models",
        ):
            assert (await raw(proxy, get(target))).status in (401, 404), target
        for host in ("localhost:4000/#@attacker.example", "t?x=/healthz", "t/healthz", "t#", "t\\healthz"):
            assert (await raw(proxy, get("/v1/models", host=host))).status == 400, host
        assert (await raw(proxy, get("/health"))).status == 200
        assert backend.connections == []


async def test_t05_no_credential_passes_in_either_direction() -> None:
    async with ScriptedBackend() as backend, watched(one(backend, more=f'api_key: "{SK}",'), backend) as proxy:
        proxy.secrets += ["sk-A", SK]
        backend.then(scripts.raw(scripts.answer("{}", headers={"Set-Cookie": "s=A", "X-Own": "1"})))
        answer = await proxy.ask(x_api_key="sk-A", api_key="sk-A", cookie="c=sk-A", proxy_authorization="Basic c2st")
        assert answer.status == 200
        seen = await backend.seen(1)
        assert seen.header("authorization") == f"Bearer {SK}"
        for name in ("x-api-key", "api-key", "cookie", "proxy-authorization"):
            assert seen.header(name) is None, name
        assert b"sk-A" not in bytes(backend.connections[0].received)
        assert SK.encode() not in answer.head.raw + answer.body


async def test_t10_no_field_and_no_redirect_leads_anywhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    async with ScriptedBackend() as elsewhere, ScriptedBackend() as backend:
        async with watched(one(backend, more=f'api_key: "{SK}",'), backend) as proxy:
            where = elsewhere.url
            body = json.dumps(
                {
                    "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": where}}]}],
                    "api_base": where,
                    "base_url": where,
                }
            )
            assert (await proxy.ask(body.encode(), x_base_url=where, x_target_url=where, x_backend=where)).status == 200
            for status in (301, 302, 307, 308):
                backend.then(scripts.status(status, {"Location": where + "/v1/chat/completions"}))
                assert (await proxy.ask()).status == 502
            assert elsewhere.connections == []
            proxy.alive = False


async def test_t11_a_certificate_that_is_not_good_is_no_backend_and_never_plain_text() -> None:
    cert, key = FILES / "server.pem", FILES / "server.key"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.2", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with server:
        for tls in ("", f'tls: {{ca: "{cert}"}},'):  # unknown authority; known, but not for this address
            async with ScriptedBackend() as good:
                text = two(good, good, more=tls).replace(f'b: {{url: "{good.url}"', f'b: {{url: "https://127.0.0.2:{port}"')
                async with watched(text, good) as proxy:
                    assert (await proxy.ask()).header("x-fairlane-attempts") == "2"
                async with watched(text.replace(", standby: s", "")) as proxy:
                    proxy.alive = False
                    answer = await proxy.ask()
                    assert (answer.status, answer.header("x-fairlane-reason")) == (502, "upstream_connect")
    assert [data for data in got if data] == [], "no request was sent"


async def test_t12_where_a_caller_sits_is_believed_from_trusted_proxies_only() -> None:
    fields = {
        "x_forwarded_for": "1.2.3.4",
        "forwarded": "for=1.2.3.4",
        "x_real_ip": "1.2.3.4",
        "true_client_ip": "1.2.3.4",
        "x_forwarded_host": "h",
    }
    async with ScriptedBackend() as backend:
        async with watched(one(backend), backend) as proxy:
            await proxy.ask(**fields)
            seen = await backend.seen(1)
            assert not any(b"1.2.3.4" in value for _, value in seen.headers)
            (line,) = await proxy.logged(1)
            assert line["peer"] == "127.0.0.1"
            service = proxy.fairlane.service
            networks = tuple(map(ipaddress.ip_network, ("127.0.0.0/8", "10.0.0.0/8")))
            service.edition = replace(service.edition, trusted_proxies=networks)
            for sent, peer in (
                ("1.2.3.4", "1.2.3.4"),
                ("6.6.6.6, 1.2.3.4, 10.0.0.9", "1.2.3.4"),
                ("6.6.6.6, garbage, 10.0.0.9", "10.0.0.9"),
                (", ".join(["9.9.9.9"] * 99 + ["10.0.0.1"]), "9.9.9.9"),
                ("fe80::1%eth0", "fe80::1"),
                ("\x7f<script>", "127.0.0.1"),
                ("", "127.0.0.1"),
            ):
                count = len(proxy.lines())
                await proxy.ask(x_forwarded_for=sent)
                assert (await proxy.logged(count + 1))[-1]["peer"] == peer, sent


async def test_t13_a_request_id_is_kept_only_if_it_is_sane_and_control_fields_stay_here() -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        for sent in ("a" * 65, "<script>", "a b", "é", "", "a" * 7000):
            answer = await proxy.ask(x_request_id=sent)
            assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", answer.header("x-request-id")) and answer.header("x-request-id") != sent
        assert (await proxy.ask(x_request_id="Good_id-1")).header("x-request-id") == "Good_id-1"
        await proxy.ask(x_fairlane_backend="b", x_fairlane_model="m", x_fairlane_pool="main", x_fairlane_anything="1")
        assert not any(name.startswith(b"x-fairlane") for seen in backend.requests for name, _ in seen.headers)


async def test_t14_nothing_of_the_admin_port_is_on_the_data_port_and_it_listens_on_loopback() -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        for target in (
            "/metrics",
            "/readyz",
            "/livez",
            "/healthz",
            "/debug",
            "/debug/state",
            "/docs",
            "/openapi.json",
            "/-/reload",
            "/-/drain/b",
            "/",
        ):
            assert (await raw(proxy, get(target, BEARER))).status == 404, target
            assert (await raw(proxy, get(target, BEARER, method="POST"))).status == 404, target
        assert proxy.fairlane.settings.server.admin.host == "127.0.0.1"


async def test_t15_neither_key_nor_prompt_is_ever_written_anywhere() -> None:
    keys = f'keys: [{{name: A, secret: sk-A, lane: fast}}, {{name: C, secret: "{KEY_CANARY}", lane: fast}}]\n'
    prompt = json.dumps({"model": "m", "messages": [{"role": "user", "content": PROMPT_CANARY}]}).encode()
    async with ScriptedBackend() as backend, watched(one(backend, keys=keys), backend) as proxy:
        echo = '{"error":{"message":"cannot take ' + PROMPT_CANARY + '"}}'
        backend.then(scripts.status(400, body=echo))
        for body in (prompt, prompt, prompt[:-3], prompt.replace(b'"m"', b"7"), b"x" + prompt, prompt.replace(b"PROMPT", b"\xff")):
            answer = await proxy.ask(body, key=KEY_CANARY)
            assert answer.status in (200, 400)
            assert PROMPT_CANARY not in answer.body.decode("utf-8", "replace") or answer.body.decode() == echo
        async with await proxy.connect() as caller:
            await caller.send(post(prompt, key=KEY_CANARY)[:-4] + b"\x00" * 4 + f"\r\nBAD {KEY_CANARY}\r\n\r\n".encode())
            assert KEY_CANARY.encode() not in await caller.rest()
        assert (await proxy.ask(prompt, key="sk-A")).status == 200
        for path in ("/debug/state", "/debug/requests", "/readyz?verbose"):
            _, text = await proxy.admin(path)
            assert KEY_CANARY not in text and PROMPT_CANARY not in text


async def test_t16_what_a_caller_chose_is_one_escaped_bounded_line() -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        evil = "\x1b[31m\u2028\r\n{}" + "x" * 100_000
        body = json.dumps({"model": evil, "messages": []}, ensure_ascii=False).encode()
        await proxy.ask(body, user_agent="\x1b[31m".replace("\x1b", "^"))
        await raw(proxy, get("/v1/%0d%0a%1b[31m" + "y" * 5000, BEARER))
        lines = await proxy.logged(2)
        text = proxy.log_text()
        assert len(text.splitlines()) == 2 and "\x1b" not in text and text.isascii()
        assert all(len(json.dumps(line)) < 2000 for line in lines)


async def test_t17_no_error_names_a_host_a_port_a_file_or_a_library() -> None:
    async with ScriptedBackend() as backend, ScriptedBackend() as dead:
        await dead.refuse()
        async with watched(one(backend, pool=", timeouts: {first_token: 200ms}"), backend) as proxy:
            answers = [await raw(proxy, entry.raw) for entry in corpus("requests")[:60:6] if entry.verdict == "refused"]
            answers += [
                await raw(proxy, get("/nothing", BEARER)),
                await raw(proxy, get("/v1/chat/completions", BEARER)),
                await raw(proxy, post(key="no")),
            ]
            answers.append(await raw(proxy, post(path="/v1/realtime")))
            for steps in ([scripts.garbage()], [scripts.rst()], [scripts.hang()]):
                backend.then(*steps)
                answers.append(await proxy.ask(JS))
            await _say_nothing(answers)
        async with watched(one(dead)) as proxy:
            proxy.alive = False
            await _say_nothing([await proxy.ask()])


async def _say_nothing(answers: list[Any]) -> None:
    for answer in answers:
        assert answer.status >= 400
        error = json.loads(answer.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        text = (answer.head.raw + answer.body).decode()
        assert not re.search(r"127\.0\.0\.1|localhost|:\d{4,5}|\.py|[Tt]raceback|uvloop|httptools|llhttp|asyncio|msgspec|python", text), (
            text
        )


async def test_t18_no_spelling_gets_a_key_a_model_it_may_not_use() -> None:
    keys = "keys: [{name: A, secret: sk-A, lane: fast}, {name: S, secret: sk-S, lane: slow, models: [small], pools: [main]}]\n"
    async with ScriptedBackend() as backend, watched(one(backend, keys=keys), backend) as proxy:
        for name in (
            '"large"',
            '"LARGE"',
            '" large"',
            '"large\\u0000"',
            '"ｌarge"',
            '"small/../large"',
            '["large"]',
            '"l\\u0061rge"',
            '"Small"',
            '"small "',
            "7",
        ):
            answer = await proxy.ask(b'{"model":' + name.encode() + b',"messages":[]}', key="sk-S")
            assert answer.status in (400, 403, 404), (name, answer.status)
        assert (await proxy.ask(b'{"model":"small","model":"large","messages":[]}', key="sk-S")).status == 400
        assert (await proxy.ask(b'{"model":"small","Model":"large","messages":[]}', key="sk-S")).status == 400
        assert (await proxy.ask(b'{"messages":[]}', key="sk-S")).status in (200, 403)
        assert all(b"large" not in seen.body for seen in backend.requests)
        listed = json.loads((await raw(proxy, get("/v1/models", "Authorization: Bearer sk-S"))).body)
        assert {model["id"] for model in listed["data"]} <= {"small"}


async def test_t19_paths_of_engines_are_not_ours_in_any_spelling() -> None:
    paths = (
        "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/shutdown",
        "/v1/shutdown", "/sleep", "/wake_up", "/reset_prefix_cache", "/metrics", "/v1/metrics",
        "/v1/%2e%2e/metrics", "/v1/../metrics", "/v1/chat/completions/../../metrics",
        "/v1/%252e%252e/metrics", "/v1/chat%2fcompletions", "/v1/./models",
        "/slots", "/props", "/lora-adapters", "/v1/chat/completions/", "/collective_rpc", "/start_profile", "/server_info",
    )  # fmt: skip
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        for path in paths:
            for method in ("GET", "POST"):
                answer = await raw(proxy, get(path, BEARER, "Content-Length: 0", method=method))
                assert answer.status == 404, (method, path, answer.status)
        assert backend.connections == []


async def test_t22_a_cookie_of_one_caller_never_reaches_another() -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        backend.then(scripts.raw(scripts.answer("{}", headers={"Set-Cookie": "s=A"})))
        async with await proxy.connect() as caller:
            assert (await caller.ask(post())).header("set-cookie") is None
            await caller.ask(post(key="sk-B"))
        assert all(seen.header("cookie") is None for seen in backend.requests)


@pytest.mark.parametrize("flags", [["-O"], ["-X", "dev", "-W", "error"]], ids=["optimised", "dev"])
async def test_t24_the_corpus_gets_the_same_verdicts_under_other_interpreter_flags(flags: list[str]) -> None:
    entries = [entry for entry in corpus("requests") if entry.verdict in ("refused", "served") and entry.more.get("then", True)]
    async with ScriptedBackend() as backend, processed(one(backend), flags=flags) as proxy:
        for entry in entries[::2]:
            async with await proxy.connect() as caller:
                await caller.send(entry.raw + NEXT)
                status = (await caller.response()).status
                assert status == 200 if entry.verdict == "served" else status in (400, 413, 431, 501), (entry.id, status)
        for steps, whole in (([scripts.ok()], True), ([scripts.head(), scripts.event("a"), scripts.fin()], False)):
            backend.then(*steps)
            async with await proxy.connect() as caller:
                answer = await caller.ask(post(JS))
                assert answer.whole == whole and (b"[DONE]" in answer.body) == whole


async def test_t25_other_methods_touch_no_backend() -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        for method, target in (
            ("OPTIONS", "/v1/chat/completions"),
            ("POST", "/v1/models"),
            ("GET", "/v1/chat/completions"),
            ("PUT", "/v1/chat/completions"),
            ("DELETE", "/v1/models/m"),
        ):
            answer = await raw(
                proxy,
                get(
                    target,
                    BEARER,
                    "Content-Length: 0",
                    "Origin: https://evil.example",
                    "Access-Control-Request-Method: POST",
                    method=method,
                ),
            )
            assert answer.status in (204, 405), (method, target)
            assert answer.header("access-control-allow-origin") is None
        async with await proxy.connect() as caller:
            await caller.send(get("/v1/models", BEARER, method="HEAD"))
            head = await caller.head()
            assert head.status in (200, 405)
        assert backend.connections == []


# --- forged priority -----------------------------------------------------------------------------------------------------


async def test_p05_the_key_alone_decides_the_lane() -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        forged = post(
            key="sk-B",
            path="/v1/chat/completions?priority=fast&lane=fast&x-fairlane-lane=fast",
            headers={"x-fairlane-lane": "fast", "X-Priority": "fast", "x_fairlane_lane": "fast"},
        )
        body = b'{"messages":[],"service_tier":"priority","metadata":{"lane":"fast","x-fairlane-lane":"fast"},"l\\u0061ne":"fast"}'
        for request in (forged, post(body, key="sk-B"), post(JS, key="sk-B")):
            assert (await raw(proxy, request)).header("x-fairlane-lane") == "slow"
        twice = post(key="sk-B").replace(b"Host: t\r\n", b"Host: t\r\nx-fairlane-lane: fast\r\nx-fairlane-lane: fast\r\n")
        assert (await raw(proxy, twice)).status == 400
        trailer = A.replace(b"sk-A", b"sk-B") + b"Transfer-Encoding: chunked\r\n\r\n39\r\n" + J + b"\r\n0\r\nx-fairlane-lane: fast\r\n\r\n"
        assert (await raw(proxy, trailer)).header("x-fairlane-lane") == "slow"
        assert {line["lane"] for line in await proxy.logged(5) if line["pool"]} == {"slow"}
        assert not any(b"fairlane" in name for seen in backend.requests for name, _ in seen.headers)


@pytest.mark.parametrize("takes", [False, True], ids=["plain", "priority-scheduling"])
async def test_p05_a_priority_in_the_body_is_not_the_callers_to_set(takes: bool) -> None:
    inner = b'{"messages":[{"role":"user","content":"\\"priority\\":1"}],"x":{"priority":2}'
    bodies = {
        b'{"priority":-5,"messages":[]}': b'{"messages":[]%s}',
        b'{"messages":[],"priority":-5}': b'{"messages":[]%s}',
        b'{ "messages" : [] , "priority" : -5 , "n" : 1.0 }': b'{ "messages" : [] , "n" : 1.0%s }',
        b'{"pri\\u006frity":"high","messages":[]}': b'{"messages":[]%s}',
        inner + b"}": inner + b"%s}",
    }
    async with ScriptedBackend() as backend, watched(one(backend, more="priority: true," if takes else ""), backend) as proxy:
        for sent, arrives in bodies.items():
            assert (await proxy.ask(sent, key="sk-B")).status == 200
            assert backend.requests[-1].body == arrives % (b',"priority":1' if takes else b""), sent
        for refused in (b'{"priority":1,"priority":2,"messages":[]}', b'{"Priority":1,"messages":[]}'):
            assert (await proxy.ask(refused, key="sk-B")).status == 400
    async with ScriptedBackend() as backend:
        async with watched(one(backend, more="models: {large: qwen},", pool=", model: large"), backend) as proxy:
            assert (await proxy.ask(b'{"priority":9,"model":"m","messages":[]}')).status == 200
            assert backend.requests[-1].body == b'{"model":"qwen","messages":[]}'


async def test_p10_thresholds_and_odd_models_are_routed_as_written() -> None:
    async with ScriptedBackend() as small, ScriptedBackend() as large:
        text = (
            TWO_LANES
            + f'platforms:\n  s: {{probe: none, backends: {{s1: {{url: "{small.url}", max_streams: 4}}}}}}\n'
            + f'  l: {{probe: none, backends: {{l1: {{url: "{large.url}", max_streams: 4}}}}}}\n'
            + "pools: {small: {primary: s}, large: {primary: l}}\n"
            + 'routes:\n  - {when: {max_tokens: "<= 256"}, pool: small}\n  - {when: {model: "large*"}, pool: large}\n'
        )
        async with watched(text, small, large) as proxy:
            proxy.alive = False

            async def pool(body: bytes) -> Any:
                answer = await proxy.ask(body)
                return answer.header("x-fairlane-pool") if answer.status == 200 else answer.status

            assert await pool(b'{"messages":[],"max_tokens":255}') == "small"
            assert await pool(b'{"messages":[],"max_tokens":256}') == "small"
            assert await pool(b'{"messages":[],"max_tokens":257}') == 404
            assert await pool(b'{"messages":[],"max_tokens":257,"model":"large-1"}') == "large"
            for model in (b'""', b"null", b'"LARGE"', b'"' + b"x" * 10_000 + b'"', b'"other"'):
                assert await pool(b'{"messages":[],"model":' + model + b"}") == 404, model


async def test_p09_ten_thousand_unknown_keys_leave_no_trace() -> None:
    async with ScriptedBackend() as backend, watched(one(backend), backend) as proxy:
        async with await proxy.connect() as caller:
            answer = await caller.ask(post())
            assert answer.status == 200
        _, before = await proxy.admin("/metrics")
        identities = proxy.fairlane.service.edition.reception._identities
        size = _size(identities)
        for n in range(1000):
            async with await proxy.connect() as caller:
                assert (await caller.ask(post(key=f"sk-{n}", headers={f"x-odd-{n}": "1"}))).status == 401
        assert _size(identities) == size
        _, after = await proxy.admin("/metrics")
        assert len(after.splitlines()) == len(before.splitlines()), "no series of a caller's making"
        for backend_ in proxy.fairlane.service.edition.backends.values():
            assert len(backend_.heads._treatments) <= 4096


def _size(thing: Any) -> int:
    values = [getattr(thing, name) for name in getattr(type(thing), "__slots__", ())] + list(
        vars(thing).values() if hasattr(thing, "__dict__") else []
    )
    return sum(len(value) for value in values if hasattr(value, "__len__"))
