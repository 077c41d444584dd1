"""Sends the requests that clients' tests have recorded to a server, and tells what it refuses.

    git clone --depth 1 https://github.com/pydantic/pydantic-ai
    ridgeline serve MODEL --port 8000 --chat-template FILE
    python bench/serve_recorded.py http://127.0.0.1:8000 pydantic-ai [FOLDER ...]

Recordings are what VCR and its likes write ("cassettes"): YAML or JSON, also with gzip, whose
`interactions` have a request; archives of HTTP (`.har`); traces of Go's httprr; documents with one
`request` (whose `extra_body` is merged, as the Python client does) or, of Rust's httpmock, `when`.
Those whose path is that of an endpoint for language models are sent, each once, with the model that
is served and few new tokens. Printed is how often each status came, then each reason of a refusal
with how many had it, and one that had. Wants `pyyaml`.
"""

import argparse
import base64
import binascii
import collections
import concurrent.futures
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import yaml

ENDPOINTS = re.compile(
    r"(/chat/completions|/completions|/responses|/input_tokens|/messages|/count_tokens|/embeddings"
    r"|/v2/chat|/v2/embed|/rerank|/api/chat|/api/generate|:\w*(Content|Contents|countTokens)"
    r"|:r?\w*[rR]awPredict)$"
)
IN_PATH = re.compile(r"(models|engines|deployments)/(?!chat/)[^/:]+(?=[:/])")
RECORDING = re.compile(r"\.(ya?ml|json|har|httprr)(\.gz)?$")
NEW_TOKENS = 6
LARGEST_FILE = 3_000_000
"""Bytes; larger ones hold films."""


class Loader(yaml.CSafeLoader):
    """Reads what VCR of Ruby tags, too."""


Loader.add_constructor("!binary", lambda _, node: base64.b64decode(node.value))
Recorded = tuple[str, str, dict[str, Any]]


def recorded(folder: Path) -> Iterator[Recorded]:
    """File, path and body of every request to an endpoint for language models."""
    for file in sorted(folder.rglob("*")):
        if not RECORDING.search(file.name) or not file.is_file():
            continue
        if file.stat().st_size > LARGEST_FILE:
            continue
        data = file.read_bytes()
        data = gzip.decompress(data) if file.suffix == ".gz" else data
        for request in requests_of(file.name, data):
            address = urlsplit(
                str(request.get("uri") or request.get("url") or request.get("path") or "")
            )
            path = "/" + address.path.partition("/")[2]  # some have a word for their host
            body = body_of(request)
            if ENDPOINTS.search(path) and "/threads/" not in path and isinstance(body, dict):
                yield str(file), path, body


def requests_of(name: str, data: bytes) -> list[dict[str, Any]]:
    """The requests of one recording; none where it is something else."""
    if data.startswith(b"httprr trace"):
        return http_requests(data)
    if not any(word in data for word in (b"interactions", b'"request"', b"when:")):
        return []
    try:
        documents = list(yaml.load_all(data, Loader)) if ".y" in name else [json.loads(data)]
    except (ValueError, yaml.YAMLError):
        return []
    found = []
    for whole in documents:
        if not isinstance(whole, dict):
            continue
        entries = (
            whole.get("interactions")
            or whole.get("http_interactions")
            or (whole.get("log") or {}).get("entries")
            or [whole]
        )
        found += [one.get("request") or one.get("when") for one in entries if isinstance(one, dict)]
    return [one for one in found if isinstance(one, dict)]


def http_requests(data: bytes) -> list[dict[str, Any]]:
    """Requests of an httprr trace: lines of two lengths, each followed by a request and a reply."""
    found, rest = [], data.partition(b"\n")[2]
    while rest:
        lengths, _, rest = rest.partition(b"\n")
        asked, answered = map(int, lengths.split())
        head, _, body = rest[:asked].partition(b"\r\n\r\n")
        found.append({"url": head.split()[1].decode(), "body": body})
        rest = rest[asked + answered :]
    return found


def body_of(request: dict[str, Any]) -> Any:
    """The body as JSON; None where it is something else."""
    given = request.get("parsed_body") or request.get("body")
    given = given or (request.get("postData") or {}).get("text")
    if isinstance(given, dict) and not given.keys().isdisjoint(("string", "base64_string")):
        given = given.get("string") or given.get("base64_string")
    try:
        body = json.loads(given) if isinstance(given, str | bytes) else given
    except (ValueError, binascii.Error):
        return None
    if isinstance(body, dict) and isinstance(body.get("extra_body"), dict):
        extra = body.pop("extra_body")
        return {**body, **extra}
    return body


def shortened(path: str, body: dict[str, Any], model: str) -> tuple[str, dict[str, Any]]:
    """The request for another model and with few new tokens."""
    body, few = dict(body), NEW_TOKENS
    if "model" in body:
        body["model"] = model
    if path.endswith("/responses"):
        body["max_output_tokens"] = few
    elif "Content" in path and "mbed" not in path:
        name = "generation_config" if "generation_config" in body else "generationConfig"
        options = dict(body.get(name) or {})
        options.pop("max_output_tokens", None)
        body[name] = {**options, "maxOutputTokens": few}
    elif path.endswith(("/api/chat", "/api/generate")):
        body["options"] = {**(body.get("options") or {}), "num_predict": few}
    elif not re.search(r"embed|rerank|tokens$|countTokens", path):
        body.pop("max_completion_tokens", None)
        body["max_tokens"] = few
    return IN_PATH.sub(lambda found: f"{found[1]}/{model}", path), body


def main() -> None:
    """Send them all, a few at a time."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("url")
    parser.add_argument("folders", nargs="+", type=Path)
    options = parser.parse_args()
    (card, *_) = httpx.get(options.url + "/v1/models").json()["data"]
    requests: dict[str, tuple[str, str, dict[str, Any]]] = {}
    for folder in options.folders:
        for file, path, body in recorded(folder):
            sent = shortened(path, body, card["id"])
            requests.setdefault(json.dumps(sent, sort_keys=True), (file, *sent))
    statuses: collections.Counter[int] = collections.Counter()
    reasons: dict[str, list[str]] = collections.defaultdict(list)
    with httpx.Client(timeout=300) as client, concurrent.futures.ThreadPoolExecutor(4) as pool:
        replies = pool.map(
            lambda one: client.post(options.url + one[1], json=one[2]), requests.values()
        )
        for (file, path, _), reply in zip(requests.values(), replies, strict=True):
            statuses[reply.status_code] += 1
            if reply.status_code != httpx.codes.OK:
                error = reply.json().get("error") or reply.json()
                text = error.get("message", "") if isinstance(error, dict) else str(error)
                reasons[re.sub(r"\d+", "N", text)[:160]].append(f"{path} of {file}")
    print(f"{len(requests)} requests: {dict(statuses.most_common())}")
    for reason, places in sorted(reasons.items(), key=lambda one: -len(one[1])):
        print(f"{len(places):5} {reason}\n      {places[0]}")


if __name__ == "__main__":
    main()
