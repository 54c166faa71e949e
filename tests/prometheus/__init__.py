"""Do dashboards and rules say what is so? The five rungs of proof, without a Grafana."""
