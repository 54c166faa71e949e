"""A collector of spans: OTLP over HTTP on a socket, as far as an exporter needs one, read with the protocol's own messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse


@dataclass(frozen=True)
class Span:
    """One span as it arrived; identities in hexadecimal, instants in seconds."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    begins: float
    ends: float
    error: str
    said: dict[str, Any]
    resource: dict[str, Any]


@dataclass
class Collector:
    """What came in. `status` is what it answers."""

    port: int = 0
    status: int = 200
    spans: list[Span] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def named(self, name: str) -> list[Span]:
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.begins)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                self.heads.append(head)
                fields = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if ": " in line)
                body = await reader.readexactly(int(fields["content-length"]))
                assert fields["content-type"] == "application/x-protobuf" and "content-encoding" not in fields
                if self.status == 200:
                    self.spans += _spans(body)
                answer = ExportTraceServiceResponse().SerializeToString() if self.status == 200 else b""
                head_out = f"HTTP/1.1 {self.status} X\r\nContent-Type: application/x-protobuf\r\nContent-Length: {len(answer)}\r\n\r\n"
                writer.write(head_out.encode() + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    """It listens until the block ends."""
    here = Collector()
    server = await asyncio.start_server(here.serve, "127.0.0.1", 0)
    here.port = server.sockets[0].getsockname()[1]
    try:
        yield here
    finally:
        server.close()
        await server.wait_closed()


def _spans(body: bytes) -> list[Span]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        Span(
            span.name,
            span.kind,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.start_time_unix_nano / 1e9,
            span.end_time_unix_nano / 1e9,
            span.status.message if span.status.code == 2 else "",
            _attributes(span.attributes),
            _attributes(resource.resource.attributes),
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
