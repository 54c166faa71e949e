"""Decisions: which request goes to which backend, when. Pure: no I/O, no clock, no asyncio; `now` is an argument."""
