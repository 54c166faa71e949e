"""The load generator: an open-loop streaming client, and the report of what it saw."""
