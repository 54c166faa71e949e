"""Which dashboards does an operator of Grafana get? Four small ones, generated from the catalogue of metrics."""
