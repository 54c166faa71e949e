"""What does Fairlane cost beside other proxies, on the same work, in one run? `python -m lab.compare setup`, `run`, `memory`."""
