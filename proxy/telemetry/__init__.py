"""What happened, in numbers and lines: metrics, the access log, the process log. No policy and no byte of a caller's content."""
