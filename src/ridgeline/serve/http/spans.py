"""OpenTelemetry: one span per request, in the caller's trace, where opentelemetry-api is installed.

Without an SDK set up (`opentelemetry-instrument ridgeline serve …`, or its environment variables)
the API's spans cost next to nothing; without the package there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import Scope

from ridgeline.serve.http.record import Record

try:
    from opentelemetry import propagate, trace
except ImportError:
    trace = None


@contextmanager
def span(scope: Scope, record: Record) -> Iterator[Callable[[int], None]]:
    """A span around a request; call what it gives with the response's status."""
    if trace is None:
        yield lambda status: None  # noqa: ARG005  there is nothing to mark
        return
    headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
    with trace.get_tracer("ridgeline.serve").start_as_current_span(
        f"{scope['method']} {scope['path']}",
        context=propagate.extract(headers),
        kind=trace.SpanKind.SERVER,
    ) as current:

        def mark(status: int) -> None:
            if not current.is_recording():
                return
            current.set_attribute("http.response.status_code", status)
            current.set_attribute("http.request.header.x-request-id", record.request_id)
            current.set_attribute("gen_ai.request.model", record.model)
            current.set_attribute("gen_ai.usage.input_tokens", record.prompt_tokens)
            current.set_attribute("gen_ai.usage.output_tokens", record.output_tokens)

        yield mark
