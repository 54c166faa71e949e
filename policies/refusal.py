"""How long would it wait, and what Retry-After is honest?

Estimated wait = (place in the queue + 1) / (slots given back per second x the lane's effective share). Retry-After is that estimate in
whole seconds, spread by 20 % so that those refused together do not return together. Where nothing has been measured yet, and for
`draining`, it is FALLBACK_S: long enough for a short answer to end, short enough that a caller loses little by having believed it.
"""

from __future__ import annotations

import random
from math import ceil, inf

FALLBACK_S = 2.0
SPREAD_RATIO = 0.2  # policies.md 10
LONGEST_S = 60


def estimate_s(place: int, rate_rps: float) -> float:
    """Seconds until the request that finds `place` others before it would be dispatched; inf: never at this rate. Grows with the place."""
    return (place + 1) / rate_rps if rate_rps > 0 else inf


def effective_share(share: float, higher_ratio: float) -> float:
    """Which part of the slots that come back does a lane get? Its guarantee, or what the higher lanes have lately left."""
    return max(share, 1.0 - higher_ratio)


def retry_after_s(wait_s: float, generator: random.Random) -> int:
    """Whole seconds from 1 to 60 for a header Retry-After, around an estimated wait."""
    jitter = 1.0 + SPREAD_RATIO * (2.0 * generator.random() - 1.0)
    return max(1, min(LONGEST_S, ceil(min(wait_s * jitter, LONGEST_S))))
