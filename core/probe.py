"""Watches whether a pool's upstream can be reached, for those who decide where to send traffic."""

import ssl
from collections.abc import Iterator

import httpx2
import structlog

from core.lifecycle import Service
from core.ports import Clock

log = structlog.get_logger(__name__)


class Probe(Service):
    """Asks the upstream for its models every `every` seconds (`every_down` while it is away); any answer will do.

    `reachable` is `None` until the first answer or failure. `error` tells the kind of the last failure in words that
    hold neither address nor key.
    """

    name = "probe"

    def __init__(
        self,
        *,
        pool: str,
        base_url: str,
        clock: Clock,
        api_key: str | None = None,
        every: float = 10.0,
        every_down: float = 2.0,
        timeout: float = 3.0,
    ) -> None:
        """Prepare to probe `base_url`; starts nothing."""
        super().__init__()
        self.pool = pool
        self.reachable: bool | None = None
        self.error: str | None = None
        self._url = f"{base_url}/models"
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._clock = clock
        self._every = every
        self._every_down = min(every, every_down)
        self._timeout = timeout

    async def run(self) -> None:
        """Probe until cancelled."""
        async with httpx2.AsyncClient(timeout=self._timeout, trust_env=False) as client:
            while True:
                self._note(await self._failure(client))
                await self._clock.sleep(self._every if self.reachable else self._every_down)

    async def _failure(self, client: httpx2.AsyncClient) -> str | None:
        try:
            async with client.stream("GET", self._url, headers=self._headers):
                return None
        except (httpx2.HTTPError, OSError) as error:
            return kind_of(error)

    def _note(self, failure: str | None) -> None:
        before, self.reachable, self.error = self.reachable, failure is None, failure
        if self.reachable and before is False:
            log.info("upstream is back", pool=self.pool)
        elif not self.reachable and before is not False:
            log.warning("upstream is away", pool=self.pool, error=failure)


def kind_of(error: Exception) -> str:
    """Return in a few words, free of addresses and keys, why no answer came."""
    if any(isinstance(link, ssl.SSLError) for link in _chain(error)):
        return "TLS failed"
    if isinstance(error, httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return "connecting timed out"
    if isinstance(error, httpx2.TimeoutException):
        return "no answer in time"
    return "connection failed" if isinstance(error, httpx2.ConnectError | OSError) else "answer broke off"


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__
