"""The closed list of paths, and the catalogue of models."""

from __future__ import annotations

import json

import anthropic.types
import openai.types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.endpoints import Api, Kind, api_of, classify, model_answer, model_asked, models_answer


@pytest.mark.parametrize(
    ("path", "kind", "api", "method", "slotless"),
    [
        ("chat/completions", Kind.GENERATION, Api.OPENAI, "POST", False),
        ("completions", Kind.GENERATION, Api.OPENAI, "POST", False),
        ("responses", Kind.GENERATION, Api.RESPONSES, "POST", False),
        ("messages", Kind.GENERATION, Api.ANTHROPIC, "POST", False),
        ("embeddings", Kind.UNARY, Api.OPENAI, "POST", False),
        ("messages/count_tokens", Kind.UNARY, Api.ANTHROPIC, "POST", True),
        ("responses/input_tokens", Kind.UNARY, Api.RESPONSES, "POST", True),
        ("audio/transcriptions", Kind.UPLOAD, Api.OPENAI, "POST", False),
        ("uploads/up_1/parts", Kind.UPLOAD, Api.OPENAI, "POST", False),
        ("audio/speech", Kind.BINARY, Api.OPENAI, "POST", False),
        ("files/file-1/content", Kind.BINARY, Api.OPENAI, "GET", False),
        ("models", Kind.CATALOGUE, Api.OPENAI, "GET", False),
        ("models/Qwen/Qwen2.5-7B", Kind.CATALOGUE, Api.OPENAI, "GET", False),
        ("responses/resp_1", Kind.STATEFUL, Api.OPENAI, "POST", False),
        ("chat/completions/c-1", Kind.STATEFUL, Api.OPENAI, "POST", False),
        ("batches", Kind.STATEFUL, Api.OPENAI, "POST", False),
        ("conversations/x/items", Kind.STATEFUL, Api.OPENAI, "POST", False),
        ("realtime", Kind.REALTIME, Api.OPENAI, "GET", False),
    ],
)
def test_the_table(path: str, kind: Kind, api: Api, method: str, slotless: bool) -> None:
    for query in ("", "?beta=true"):
        endpoint = classify(f"/v1/{path}{query}".encode())
        assert endpoint is not None
        assert (endpoint.kind, endpoint.api, endpoint.method, endpoint.slotless) == (kind, api, method, slotless)


@pytest.mark.parametrize(
    "target",
    [
        b"/", b"*", b"", b"/v1", b"/v1/", b"/V1/models", b"//v1/models", b"/v1//models", b"/v1/models;a", b"/v1/models#f", b"/v1/models/",
        b"/v1/chat/completions/", b"/v1/%63hat/completions", b"/v1/chat%2fcompletions", b"/v1/./models", b"/healthz/../v1/models",
        b"/v1/%2e%2e/metrics", b"/v1/%252e%252e/metrics", b"/v1/files/../content", b"/v1/files/%2e%2e/content", b"/v1/uploads//parts",
        b"/v1/load_lora_adapter", b"/v1/unload_lora_adapter", b"/v1/sleep", b"/v1/reset_prefix_cache", b"/v1/shutdown", b"/v1/metrics",
        b"/metrics", b"/readyz", b"/debug", b"/docs", b"/openapi.json", b"/canary", b"http://other.example/v1/models", b"evil:443",
        b"/v1/models\x00", b"/v1/models\x80",
    ],
)  # fmt: skip
def test_no_other_spelling_is_served(target: bytes) -> None:
    endpoint = classify(target)
    assert endpoint is None or endpoint.kind is Kind.STATEFUL  # which is refused as well, and never forwarded


def test_dots_behind_a_listed_path_reach_nobody() -> None:
    endpoint = classify(b"/v1/chat/completions/../../metrics")
    assert endpoint is not None and endpoint.kind is Kind.STATEFUL


@given(st.one_of(st.binary(max_size=60), st.binary(max_size=40).map(lambda tail: b"/v1/" + tail)))
def test_any_target_has_an_answer(target: bytes) -> None:
    classify(target)
    model_asked(target)
    assert api_of(target) in Api


def test_shape_of_paths_we_do_not_serve() -> None:
    assert api_of(b"/v1/messages/batches") is Api.ANTHROPIC
    assert api_of(b"/v1/messages?beta=true") is Api.ANTHROPIC
    assert api_of(b"/v1/messages2") is Api.OPENAI
    assert api_of(b"/v1/responses/resp_1") is Api.RESPONSES


def test_model_asked() -> None:
    assert model_asked(b"/v1/models?limit=5") is None
    assert model_asked(b"/v1/models/Qwen/Qwen2.5") == model_asked(b"/v1/models/Qwen%2FQwen2.5") == "Qwen/Qwen2.5"
    assert model_asked(b"/v1/models/\xff") == model_asked(b"/v1/models/%ff") == "\ufffd"


def test_catalogue_in_the_openai_shape() -> None:
    document = json.loads(models_answer(["a", "b"], Api.OPENAI))
    assert document["object"] == "list"
    assert [openai.types.Model.model_validate(row).id for row in document["data"]] == ["a", "b"]
    one = model_answer("b", ["a", "b"], Api.OPENAI)
    assert one is not None and json.loads(one) == document["data"][1]
    assert model_answer("c", ["a", "b"], Api.OPENAI) is None


def test_catalogue_in_the_anthropic_shape() -> None:
    document = json.loads(models_answer(["a", "b"], Api.ANTHROPIC))
    assert (document["has_more"], document["first_id"], document["last_id"]) == (False, "a", "b")
    assert [anthropic.types.ModelInfo.model_validate(row).id for row in document["data"]] == ["a", "b"]
    assert json.loads(models_answer([], Api.ANTHROPIC)) == {"data": [], "has_more": False, "first_id": None, "last_id": None}
