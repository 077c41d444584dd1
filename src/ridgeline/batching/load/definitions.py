"""What each figure of a load test means. They are printed with every report."""

from __future__ import annotations

DEFINITIONS = {
    "ttft_seconds": (
        "time to first token: from the planned time of sending to the first chunk with text in it;"
        " over requests"
    ),
    "ttft_from_sent_seconds": "the same from the actual time of sending",
    "tpot_seconds": (
        "time per output token: (last chunk - first chunk) / (tokens - 1) of a request with at"
        " least two tokens; over requests"
    ),
    "itl_seconds": (
        "inter-token latency: gap before each token after a request's first; the further tokens of"
        " a chunk that bundles several count 0; over tokens"
    ),
    "stall_seconds": "gap between two chunks of a request; over gaps",
    "e2e_seconds": "end to end: from the planned time of sending to the last chunk; over requests",
    "output_tokens_per_second": (
        "tokens that came in the window over its length; counted by the server's usage, never by"
        " chunks, and spread over a request's chunks evenly"
    ),
    "goodput": "requests per second, planned in the window, that met every SLO given",
    "window": (
        "from the end of the warm-up to the last sending; the drain after it is cut. Where that is"
        " shorter than two median requests: to the last answer instead"
    ),
    "failed": (
        "any status but 200, an error in the stream, no text, a stream that broke off, or time-out;"
        " none of them enters a latency"
    ),
    "send_lag": (
        "from the planned time of sending to when the request's head was written, less the time"
        " that a new connection took"
    ),
    "cpu_share": "processor time of the load tester over the time of sending; 1 is one core",
}
