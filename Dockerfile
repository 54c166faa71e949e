# Built once with what compiling may need, run with nothing but Python, as nobody in particular.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/fairlane
COPY requirements.lock pyproject.toml README.md LICENSE ./
RUN /opt/fairlane/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY policies policies
COPY proxy proxy
COPY lab lab
COPY config config
COPY docs/runbook.md docs/runbook-levers.md docs/
RUN /opt/fairlane/bin/pip install --no-cache-dir --no-deps .

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --no-create-home fairlane
COPY --from=build /opt/fairlane /opt/fairlane
COPY config /etc/fairlane
ENV PATH=/opt/fairlane/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
EXPOSE 8080 9090
STOPSIGNAL SIGTERM
# Exec form: Fairlane is process 1 and gets SIGTERM itself. Give it longer than server.drain.timeout to finish: docker stop -t 130.
ENTRYPOINT ["fairlane"]
CMD ["serve", "/etc/fairlane/fairlane.yaml"]
