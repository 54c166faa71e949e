"""How would an inference engine answer? A fake one: an engine's API, its latency under load, and faults on request."""
