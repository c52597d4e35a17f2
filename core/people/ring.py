"""The key ring: who sends a request, known without asking the store, and never from what is older than 5 s."""

import asyncio
from contextlib import suppress

import structlog

from core.addresses import parse_address
from core.errors import RequestError
from core.lifecycle import Service
from core.people.identity import Identity
from core.people.secret import KeyedHash
from core.people.snapshot import KeyEntry, Rules, Snapshot, build
from core.people.store import PeopleStore
from core.people.tenants import TenantDirectory
from core.ports import Clock

FRESH_S = 5.0
LOOK_EVERY_S = 1.0
SEEN_EVERY_S = 30.0
STORE_PATIENCE_S = 4.0
AGAIN_S = 0.2

log = structlog.get_logger(__name__)


class KeyRing(Service):
    """Knows every key and session; looks each second whether the store has another revision.

    What was confirmed by the store more than 5 s ago is not taken: a stored key is then refused with 503
    `keys_not_checked`, an unknown one as always, and keys of the settings file, which no store can revoke, are taken.
    A change made here is in force after `refresh`. Tenants go to `directory`.
    """

    name = "key ring"

    def __init__(
        self, *, store: PeopleStore, clock: Clock, hasher: KeyedHash, rules: Rules, directory: TenantDirectory
    ) -> None:
        super().__init__()
        self._store = store
        self._clock = clock
        self._hasher = hasher
        self._digest = hasher.digest
        self._rules = rules
        self._directory = directory
        self._fresh_until = float("-inf")
        self._reading = asyncio.Lock()
        self._used_keys: set[str] = set()
        self._used_sessions: set[str] = set()
        self._seen_at = float("-inf")
        self._failing = False
        self.snapshot = Snapshot()

    @property
    def fresh(self) -> bool:
        """Tell whether the store confirmed what is known here, at most 5 s ago."""
        return self._clock.monotonic() <= self._fresh_until

    @property
    def pages_open(self) -> bool:
        """Tell whether pages need no sign-in."""
        return self._rules.may_be_open and not self._rules.others_sign_in and not self.snapshot.accounts

    def quick(self, authorization: bytes) -> Identity | None:
        """Return whom a key stands for of which nothing else must be asked, `None` for any other: see `identify`.

        For the hot path: what it costs is the keyed hash.
        """
        if authorization[:7] != b"Bearer ":
            return None
        digest = self._digest(authorization[7:])
        if self._clock.monotonic() > self._fresh_until:
            entry = self.snapshot.keys.get(digest)
            return entry.identity if entry is not None and not entry.stored else None
        identity = self.snapshot.plain.get(digest)
        if identity is not None:
            self._used_keys.add(identity.key or "")
        return identity

    def identify(self, authorization: bytes | None, address: str | None = None) -> Identity:
        """Return who sent this `Authorization` header from `address`.

        Raises RequestError: 401 `invalid_api_key`, 403 `address_not_allowed`, 503 `keys_not_checked`.
        """
        snapshot = self.snapshot
        if snapshot.anyone is not None:
            return snapshot.anyone
        scheme, _, token = (authorization or b"").partition(b" ")
        entry = snapshot.keys.get(self._digest(token.strip())) if scheme.lower() == b"bearer" else None
        if entry is None:
            raise unauthorized()
        if entry.stored:
            self._check(entry, address)
        return entry.identity

    def session(self, cookie: str) -> Identity | None:
        """Return who is signed in with this cookie, `None` where nobody is, or nobody can tell now."""
        entry = self.snapshot.sessions.get(self._digest(cookie.encode()))
        if entry is None or entry.until <= self._clock.now().timestamp() or not self.fresh:
            return None
        self._used_sessions.add(entry.id)
        return entry.identity

    def holds(self, identity: Identity) -> bool:
        """Tell whether the key, session or account that `identity` came with still stands, as it was then.

        Who came with nothing stays for as long as pages need no sign-in.
        """
        if identity.anonymous:
            return self.pages_open
        snapshot, now = self.snapshot, self._clock.now().timestamp()
        if identity.account is None:
            entries = (entry for entry in snapshot.keys.values() if entry.identity == identity)
            return any(not entry.revoked and (entry.until is None or now < entry.until) for entry in entries)
        if identity.session is None:
            return snapshot.identities.get(identity.account) == identity
        return any(entry.identity == identity and now < entry.until for entry in snapshot.sessions.values())

    async def refresh(self) -> None:
        """Read what is new. Raises what the store raises, TimeoutError where it does not answer."""
        async with self._reading:
            await self._refresh()

    async def look_again(self) -> None:
        """Read what is new unless that was done just now; a store that fails changes nothing, and nobody waits for it.

        It is the ring's own looks that tell when it answers again.
        """
        if self._fresh_until - self._clock.monotonic() < FRESH_S - AGAIN_S and not self._failing:
            with suppress(Exception):
                async with self._reading:
                    if not self._failing:
                        await self._refresh()

    async def run(self) -> None:
        """Look for changes until cancelled; note now and then what was used."""
        while True:
            await self._look()
            await self._clock.sleep(LOOK_EVERY_S)

    async def stop(self) -> None:
        """Stop, and note what was used since the last time."""
        # A statement that is cancelled in the middle costs its connection: let a look come to its end first.
        async with self._reading:
            await super().stop()
        with suppress(Exception):
            await self._note_use()

    async def _look(self) -> None:
        with suppress(Exception):
            await self.refresh()
            if self._clock.monotonic() - self._seen_at >= SEEN_EVERY_S:
                async with self._reading:
                    await self._note_use()

    async def _refresh(self) -> None:
        asked_at = self._clock.monotonic()
        try:
            async with asyncio.timeout(STORE_PATIENCE_S):
                if await self._store.revision() != self.snapshot.revision:
                    everyone = await self._store.everyone()
                    self.snapshot = build(everyone, self._rules, hasher=self._hasher, now=self._clock.now())
                    self._directory.put(self.snapshot.tenants)
        except Exception as error:
            if not self._failing:
                log.warning("keys cannot be checked: the database does not answer", error=type(error).__name__)
            self._failing = True
            raise
        self._fresh_until, self._failing = asked_at + FRESH_S, False

    async def _note_use(self) -> None:
        self._seen_at, now = self._clock.monotonic(), self._clock.now()
        keys, sessions = self._used_keys, self._used_sessions
        if keys or sessions:
            self._used_keys, self._used_sessions = set(), set()
            await self._store.seen(keys=dict.fromkeys(keys, now), sessions=dict.fromkeys(sessions, now))

    def _check(self, entry: KeyEntry, address: str | None) -> None:
        if not self.fresh:
            raise _not_checked()
        if entry.revoked:
            raise unauthorized("This API key was revoked.")
        if entry.until is not None and self._clock.now().timestamp() >= entry.until:
            raise unauthorized("This API key has expired.")
        if entry.networks and not _inside(entry, address):
            raise RequestError(
                403,
                "address_not_allowed",
                "This key may not be used from this address.",
                type="invalid_request_error",
                should_retry=False,
            )
        self._used_keys.add(entry.identity.key or "")


def unauthorized(message: str = "") -> RequestError:
    """Return the refusal of who shows no valid key."""
    return RequestError(
        401,
        "invalid_api_key",
        message or "This needs a valid API key: send it as `Authorization: Bearer KEY`.",
        type="invalid_request_error",
        should_retry=False,
    )


def _not_checked() -> RequestError:
    message = "Keys cannot be checked now: the database does not answer. Try again soon."
    return RequestError(503, "keys_not_checked", message, retry_after=5)


def _inside(entry: KeyEntry, address: str | None) -> bool:
    found = parse_address(address) if address else None
    return found is not None and any(found in network for network in entry.networks)
