"""How do attempts end in the simulated world? As the proxy reports it (`proxy.attempt`, `proxy.story`): verdict, outcome, a word."""

from __future__ import annotations

from policies.model import Ending, Outcome, Verdict

OK = Ending(Verdict.OK, Outcome.OK, why="ok")
LEFT = Ending(Verdict.NEUTRAL, Outcome.CLIENT_GONE, why="caller left")
REFUSED = Ending(Verdict.FAILED, Outcome.UPSTREAM_CONNECT, maybe_starting=True, why="refused")
RESET = Ending(Verdict.FAILED, Outcome.UPSTREAM_RESET, why="reset")
STATUS_500 = Ending(Verdict.FAILED, Outcome.UPSTREAM_STATUS, why="status 500")
LATE_TOKEN = Ending(Verdict.FAILED, Outcome.FIRST_TOKEN_TIMEOUT, why="no first token")
CUT = Ending(Verdict.FAILED, Outcome.TRUNCATED, why="truncated")
IDLE = Ending(Verdict.FAILED, Outcome.IDLE_TIMEOUT, why="idle_timeout")
OUT_OF_TIME = Ending(Verdict.NEUTRAL, Outcome.TOTAL_TIMEOUT, why="total timeout")
