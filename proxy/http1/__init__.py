"""The wire: HTTP/1.1 towards callers and towards backends. The only place that knows HTTP bytes."""
