"""Which file does each contestant serve? The same work for all: one door, one backend with room for everyone, no log.

What is measured is the price of the path itself. `{port}` is the contestant's own, `{engine}` the fake engine's.
"""

from __future__ import annotations

NGINX = """worker_processes 1; daemon off; pid {dir}/nginx.pid; error_log {dir}/nginx.err;
events {{ worker_connections 20000; }}
http {{ access_log off; client_body_buffer_size 1m; upstream u {{ server 127.0.0.1:{engine}; keepalive 4096; }}
server {{ listen 127.0.0.1:{port} backlog=4096; location / {{ proxy_pass http://u; proxy_http_version 1.1;
proxy_set_header Connection ""; proxy_buffering off; proxy_read_timeout 300s; keepalive_requests 1000000000; }} }} }}"""

HAPROXY = """global
  nbthread 1
  maxconn 9000
defaults
  mode http
  option http-no-delay
  timeout connect 5s
  timeout client 300s
  timeout server 300s
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
  http-reuse always
  server s 127.0.0.1:{engine} maxconn 8000
"""

ENVOY = """static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: x
          route_config: {{virtual_hosts: [{{name: a, domains: ["*"], routes: [{{match: {{prefix: "/"}}, route: {{cluster: c, timeout: 300s}}}}]}}]}}
          http_filters: [{{name: envoy.filters.http.router, typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}}}]
  clusters:
  - name: c
    connect_timeout: 5s
    circuit_breakers: {{thresholds: [{{max_connections: 10000, max_pending_requests: 10000, max_requests: 10000}}]}}
    load_assignment: {{cluster_name: c, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {engine}}}}}}}}}]}}]}}
"""  # noqa: E501

# Lanes, a key, a route, metrics and the log on stderr: nothing is switched off that is on by default.
FAIRLANE = """server: {{listen: "127.0.0.1:{port}", admin: "127.0.0.1:{admin}"}}
lanes: {{fast: {{}}, slow: {{share: 10%}}}}
keys: [{{name: perf, secret: "{key}", lane: fast}}]
platforms:
  engine: {{backends: {{a: {{url: "http://127.0.0.1:{engine}", max_streams: 8000}}}}}}
pools:
  main: {{primary: engine}}
routes: [{{pool: main}}]
"""

LITELLM = """model_list: [{{model_name: m, litellm_params: {{model: openai/m, api_base: "http://127.0.0.1:{engine}/v1", api_key: sk-x}}}}]
litellm_settings: {{telemetry: false}}
general_settings: {{dangerously_permit_weak_or_unset_master_key: true}}
"""
