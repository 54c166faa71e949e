"""What do Fairlane and the engines say of themselves? Their /metrics, as numbers that can be asked for."""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

WITHIN = aiohttp.ClientTimeout(total=5.0)


@dataclass(frozen=True)
class Metrics:
    """One scrape."""

    samples: tuple[tuple[str, dict[str, str], float], ...]

    def sum(self, name: str, **labels: str) -> float:
        """Of all series of that name that carry these labels; 0 where there is none."""
        return sum(value for _, value in self.series(name, **labels))

    def series(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        return [(own, value) for sample, own, value in self.samples if sample == name and labels.items() <= own.items()]

    def platforms_in_service(self) -> list[str]:
        return [labels["platform"] for labels, value in self.series("fairlane_platform_in_service") if value]


def parse(text: str) -> Metrics:
    families = text_string_to_metric_families(text)
    return Metrics(tuple((sample.name, sample.labels, sample.value) for family in families for sample in family.samples))


async def scrape(session: aiohttp.ClientSession, url: str) -> Metrics:
    """Raises aiohttp.ClientError or TimeoutError where nobody answers."""
    async with session.get(f"{url}/metrics", timeout=WITHIN) as response:
        response.raise_for_status()
        return parse(await response.text())
