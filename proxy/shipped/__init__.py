"""What does Fairlane bring for Grafana and Prometheus? Dashboards, rules and the runbook, as data of the package.

In a checkout these are links to `config/` and `docs/`; a wheel holds the files themselves.
"""
