"""The demo: a real small model behind Fairlane on this machine."""
