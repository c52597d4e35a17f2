"""Watches whether a pool's upstream can be reached, for those who decide where to send traffic."""

import ssl
from collections.abc import Iterator

import aiohttp
import structlog

from core.connecting import AddressRefused, connector
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
        async with self._session() as session:
            while True:
                self._note(await self._failure(session))
                await self._clock.sleep(self._every if self.reachable else self._every_down)

    async def ask(self) -> str | None:
        """Ask once, now; return why no answer came, `None` if one did. What was answered nobody learns."""
        async with self._session() as session:
            return await self._failure(session)

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector(keep_alive=self._timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._timeout),
        )

    async def _failure(self, session: aiohttp.ClientSession) -> str | None:
        try:
            async with session.get(self._url, headers=self._headers, allow_redirects=False):
                return None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return kind_of(error)

    def _note(self, failure: str | None) -> None:
        before, self.reachable, self.error = self.reachable, failure is None, failure
        if self.reachable and before is False:
            log.info("upstream is back", pool=self.pool)
        elif not self.reachable and before is not False:
            log.warning("upstream is away", pool=self.pool, error=failure)


def kind_of(error: Exception) -> str:
    """Return in a few words, free of addresses and keys, why no answer came."""
    links = list(_chain(error))
    if any(isinstance(link, AddressRefused) for link in links):
        return "address not allowed"
    if any(isinstance(link, ssl.SSLError) for link in links):
        return "TLS failed"
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "connecting timed out"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return "connection failed" if isinstance(error, aiohttp.ClientConnectorError) else "answer broke off"


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__
