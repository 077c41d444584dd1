"""The log of a server's process: a line of JSON for each event, on stderr."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys


class JsonLines(logging.Formatter):
    """A formatter of log lines as JSON; `extra={"fields": {…}}` of a call becomes keys."""

    def format(self, record: logging.LogRecord) -> str:
        """A log record as one line of JSON."""
        moment = dt.datetime.fromtimestamp(record.created, dt.UTC)
        line: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_as_json() -> None:
    """Ours from level info, everyone else's from warning; all on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("ridgeline").setLevel(logging.INFO)
