"""The model of an uploaded form, or no answer at all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.forms import PARTS_MAX, read, replace_model

TYPE = b"multipart/form-data; boundary=X-1"
AUDIO = (
    b'Content-Disposition: form-data; name="file"; filename="model"\r\nContent-Type: audio/wav\r\n\r\n'
    b'RIFF\r\n--X-\r\nname="model"\r\n\r\nno'
)
MODEL = b'Content-Disposition: form-data; name="model"\r\n\r\nwhisper-1'


def form(*parts: bytes, end: bytes = b"--X-1--\r\n") -> bytes:
    return b"".join(b"--X-1\r\n" + part + b"\r\n" for part in parts) + end


@pytest.mark.parametrize("parts", [(MODEL, AUDIO), (AUDIO, MODEL), (MODEL.replace(b'"', b"").replace(b"D", b"d"), AUDIO)])
def test_the_field_is_found_and_replaced(parts: tuple[bytes, ...]) -> None:
    body = form(*parts)
    found = read(body, TYPE)
    assert found.model == "whisper-1"
    changed = replace_model(body, found, "ours")
    assert changed == body.replace(b"whisper-1", b"ours") and read(changed, TYPE).model == "ours"


def test_a_form_without_one_gets_one() -> None:
    body = form(AUDIO)
    found = read(body, TYPE)
    assert found.model is None
    changed = replace_model(body, found, "ours")
    assert changed.endswith(body) and read(changed, TYPE).model == "ours"


def test_a_quoted_boundary_and_an_empty_model() -> None:
    assert read(form(MODEL), b'Multipart/Form-Data; boundary="X-1"').model == "whisper-1"
    assert read(form(MODEL.removesuffix(b"whisper-1")), TYPE).model == ""


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", TYPE),
        (form(MODEL, MODEL), TYPE),
        (form(MODEL, AUDIO, end=b""), TYPE),
        (form(MODEL)[5:], TYPE),
        (b"\r\n" + form(MODEL), TYPE),
        (form(MODEL), b"multipart/form-data"),
        (form(MODEL), b"multipart/form-data; boundary=X-1; boundary=Y"),
        (form(MODEL), b"multipart/form-data; boundary="),
        (form(MODEL), b"multipart/form-data; boundary=" + b"x" * 71),
        (form(b"\r\nx"), TYPE),
        (form(b'Content-Disposition: form-data; name="model"\r\nContent-Disposition: form-data; name="x"\r\n\r\nm'), TYPE),
        (form(b'Content-Disposition: form-data; name="mod\\"el"\r\n\r\nm'), TYPE),
        (form(b"X: " + b"y" * 5000 + b"\r\n" + MODEL), TYPE),
        (form(MODEL + b"x" * 600), TYPE),
        (form(MODEL.replace(b"whisper-1", b"\xff")), TYPE),
        (form(*[AUDIO] * (PARTS_MAX + 1)), TYPE),
        (form(*[AUDIO] * 10_000), TYPE),
    ],
)
def test_what_is_malformed_or_ambiguous_is_refused(body: bytes, content_type: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read(body, content_type)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([b"--X-1", b"--", b"\r\n", b"\r\n\r\n", MODEL, AUDIO, b"\x00"]), max_size=12).map(b"".join))
def test_no_pieces_in_any_order_do_harm(body: bytes) -> None:
    try:
        found = read(body, TYPE)
    except ValueError:
        return
    assert found.span is None or body[found.span[0] : found.span[1]].decode() == found.model
