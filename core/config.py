"""The settings, as read at the start: their shapes, defaults and what must hold between them."""

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from core.addresses import base_url as normal_base_url
from core.errors import ConfigError
from core.lanes import Lane
from core.people.config import OidcSignIn, ProxySignIn, WebAddress
from core.people.identity import Role
from core.quotas import Budgets, PoolSettings, default_ceiling, default_headroom, default_reserve

CAPACITY_SHARE = 0.75
LEAST_FILE_KEY = 32
LEAST_SECRET = 16
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
DATABASE_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}


def _split_commas(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _database_url(secret: SecretStr) -> SecretStr:
    scheme, mark, rest = secret.get_secret_value().partition("://")
    if not mark or scheme not in DATABASE_DRIVERS:
        raise ValueError("must begin with sqlite:/// or postgresql://")
    return SecretStr(f"{DATABASE_DRIVERS[scheme]}://{rest}")


def _some_secret(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("must be printable ASCII without blanks, and not empty")
    return secret


def _long_secret(secret: SecretStr) -> SecretStr:
    if len(_some_secret(secret).get_secret_value()) < LEAST_FILE_KEY:
        raise ValueError(f"must have at least {LEAST_FILE_KEY} characters; `openssl rand -hex 32` makes one")
    return secret


def _installation_secret(secret: SecretStr) -> SecretStr:
    if len(_some_secret(secret).get_secret_value()) < LEAST_SECRET:
        raise ValueError(f"must have at least {LEAST_SECRET} characters; `openssl rand -hex 32` makes one")
    return secret


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise ValueError(f"{text[:60]!r} is no address range such as 10.0.0.0/8") from None


def _own_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError("names a home folder that is not known here; write the whole path") from None


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_commas)]
BaseUrl = Annotated[str, AfterValidator(normal_base_url)]
Secret = Annotated[SecretStr, AfterValidator(_some_secret)]
InstallationSecret = Annotated[SecretStr, AfterValidator(_installation_secret)]
FileKey = Annotated[SecretStr, AfterValidator(_long_secret)]
Networks = Annotated[tuple[Annotated[str, AfterValidator(_network)], ...], NoDecode, BeforeValidator(_split_commas)]
DatabaseUrl = Annotated[SecretStr, AfterValidator(_database_url)]
Folder = Annotated[Path, AfterValidator(_own_home)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_flag_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true and false where they would be taken for 1 and 0."""
        if isinstance(value, bool) and cls.model_fields[info.field_name or ""].annotation is not bool:
            raise ValueError("must be a value, not true or false")
        return value


class BudgetConfig(_Strict):
    """What 95 % of interactive requests are promised."""

    first_token_s: float = Field(1.0, gt=0, description="Seconds to the first token, queue wait included.")
    per_token_ms: float = Field(75.0, gt=0, description="Milliseconds per further token.")
    error_rate: float = Field(0.02, ge=0, le=1, description="Share of interactive requests that may fail.")


class LaneTimeouts(_Strict):
    """How long one request of a lane may take, in seconds."""

    connect: float = Field(5.0, gt=0, description="Until the connection to the upstream stands.")
    first_byte: float = Field(
        120.0, gt=0, description="Until the first byte of an answer that is streamed; others have the total alone."
    )
    between_bytes: float = Field(60.0, gt=0, description="Between two pieces of the answer.")
    total: float = Field(600.0, gt=0, description="Until the end of the answer.")


BATCH_TIMEOUTS = LaneTimeouts(first_byte=600.0, between_bytes=120.0, total=1800.0)


class PoolTuning(_Strict):
    """How one pool is run; of the single pool these are settings of the top level."""

    models: Names = Field(("*",), min_length=1, description="Globs of the models that the pool serves.")
    aliases: dict[str, str] = Field({}, description="Names that clients may use for a model: alias = model.")
    upstream_capacity: int | None = Field(
        None, ge=1, description="What the upstream can take at once; slots become 75 % of it. Excludes slots."
    )
    reserve: int | None = Field(None, ge=0, description="Slots that batch may never take. Default 1, 0 for one slot.")
    headroom: int | None = Field(
        None, ge=0, description="Slots kept free beside interactive in flight. Default 1 from 4 slots on, else 0."
    )
    floor: int = Field(1, ge=0, description="The quota that the controller never goes below.")
    ceiling: int | None = Field(
        None,
        ge=0,
        description="The quota that the controller never goes above. Default slots - reserve; without pull_backs half.",
    )
    budgets: BudgetConfig = Field(BudgetConfig(), description="What interactive requests are promised.")
    model_budgets: dict[str, BudgetConfig] = Field({}, description="Budgets of single models, by name.")
    interactive_timeouts: LaneTimeouts = Field(LaneTimeouts(), description="Time-outs of interactive requests.")
    batch_timeouts: LaneTimeouts = Field(BATCH_TIMEOUTS, description="Time-outs of batch requests.")
    interactive_queue: int = Field(256, ge=0, description="Interactive requests that may wait.")
    interactive_max_wait: float = Field(30.0, gt=0, description="Seconds that an interactive request may wait.")
    batch_queue: int = Field(1000, ge=0, description="Batch requests that may wait.")
    batch_max_wait: float = Field(
        600.0, ge=0, description="Seconds after which a waiting batch request is overdue and goes first; 0 is never."
    )
    batch_attempts: int = Field(4, ge=1, description="Times that a line of a durable batch is sent, at most.")
    stream_items: bool = Field(
        True, description="Whether lines of durable batches are streamed from the upstream, so that their pace is seen."
    )
    engine_priority: int | None = Field(
        None, description="What lines of durable batches carry as the engine's `priority`; vLLM takes the lower first."
    )
    batch_rps: float | None = Field(None, gt=0, description="Batch requests started per second, at most.")
    batch_tpm: float | None = Field(None, gt=0, description="Batch tokens per minute, at most.")
    pull_backs: bool = Field(
        True, description="Whether running batch may be aborted for interactive; off where aborted work is billed."
    )
    heartbeat_after: float = Field(15.0, gt=0, description="Seconds after which a waiting stream gets heartbeats.")

    @field_validator("batch_timeouts", mode="before")
    @classmethod
    def _rest_of_batch_timeouts(cls, value: object) -> object:
        """Let time-outs that are not given be batch's own, not those of interactive."""
        return {**BATCH_TIMEOUTS.model_dump(), **value} if isinstance(value, dict) else value


class PoolConfig(PoolTuning):
    """One upstream's capacity. `None` means: the default that depends on other settings."""

    name: str = Field("default", pattern=NAME_PATTERN, description="The pool's name in pages, API and metrics.")
    base_url: BaseUrl = Field(description="The upstream's base URL; /v1 is appended where it does not end so.")
    api_key: Secret | None = Field(None, description="The key sent to the upstream; best as env:NAME.")
    slots: int = Field(8, ge=1, description="Requests in flight to the upstream, at most.")

    @model_validator(mode="before")
    @classmethod
    def _slots_from_capacity(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("upstream_capacity") is None:
            return data
        if data.get("slots") is not None:
            raise ValueError("slots and upstream_capacity exclude each other; give one of them")
        try:
            return {**data, "slots": slots_for(int(data["upstream_capacity"]))}
        except (TypeError, ValueError):
            return data

    @model_validator(mode="after")
    def _bounds_fit(self) -> Self:
        wanted = pool_settings(self)
        if wanted.reserve and wanted.reserve >= wanted.slots:
            raise ValueError(f"reserve = {wanted.reserve} must be below slots = {wanted.slots}; lower reserve")
        if wanted.ceiling > wanted.batch_max:
            raise ValueError(f"ceiling = {wanted.ceiling} is above slots - reserve = {wanted.batch_max}; lower it")
        if wanted.floor > wanted.ceiling:
            raise ValueError(f"floor = {wanted.floor} is above ceiling = {wanted.ceiling}; lower floor")
        return self


class KeyConfig(_Strict):
    """An API key given in the file."""

    name: str = Field(pattern=NAME_PATTERN, description="The key's name; unique.")
    key: Secret = Field(description="The key itself; best as env:NAME.")
    tenant: str = Field("default", pattern=NAME_PATTERN, description="The team that the key belongs to.")
    lane: Lane = Field(Lane.INTERACTIVE, description="The lane of a request that asks for none.")
    lanes: tuple[Lane, ...] = Field(
        (Lane.INTERACTIVE, Lane.BATCH), min_length=1, description="The lanes that the key may use."
    )
    role: Role = Field(Role.MEMBER, description="What the key may do: viewer, member, operator or admin.")

    @model_validator(mode="before")
    @classmethod
    def _own_lane_only(cls, data: Any) -> Any:
        """Let a key of which only `lanes` is given begin in the first of them."""
        if isinstance(data, dict) and "lane" not in data and data.get("lanes"):
            return {**data, "lane": Lane.INTERACTIVE if Lane.INTERACTIVE in data["lanes"] else data["lanes"][0]}
        return data

    @model_validator(mode="after")
    def _lane_allowed(self) -> Self:
        if self.lane not in self.lanes:
            raise ValueError(f"lane = {self.lane} is not in lanes; add it there")
        return self


class Settings(PoolTuning, BaseSettings):
    """All that is settled at the start. Reads nothing by itself: `core.sources.load` gathers file and environment.

    The fields of `PoolTuning`, with `upstream`, `upstream_key` and `slots`, describe the single pool `default`; with
    `pools` they must be absent.
    """

    model_config = SettingsConfigDict(env_prefix="TIDEGATE_", env_nested_delimiter="__", extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", min_length=1, description="The address to listen on.")
    port: int = Field(3456, ge=0, le=65535, description="The port to listen on; 0 takes a free one.")
    data: Folder = Field(Path("data"), description="The folder that holds all state; made with mode 0700.")
    upstream: BaseUrl | None = Field(None, description="The model server's base URL.")
    upstream_key: Secret | None = Field(None, description="The key sent to the model server.")
    slots: int | None = Field(None, ge=1, description="Requests in flight to the upstream, at most. Default 8.")
    pools: tuple[PoolConfig, ...] = Field((), description="Several pools, each a [[pools]] table.")
    keys: tuple[KeyConfig, ...] = Field((), description="API keys, each a [[keys]] table.")
    database: DatabaseUrl | None = Field(None, description="The database's URL. Default: SQLite in the data folder.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="The least level logged.")
    log_format: Literal["console", "json"] = Field("console", description="How log lines are written.")
    insecure: bool = Field(False, description="Allow listening beyond loopback although nobody has to sign in.")
    allowed_hosts: Names = Field((), description="Host names, beside the address listened on, that requests may name.")
    allowed_addresses: Networks = Field(
        (),
        description="Address ranges from which anything is answered at all, such as 10.0.0.0/8. Default: everywhere.",
    )
    trusted_proxies: Networks = Field(
        (), description="Addresses of proxies whose word counts on where a request came from, and who is signed in."
    )
    public_url: WebAddress | None = Field(
        None, description="The address at which browsers reach Tidegate, where a proxy makes it another."
    )
    secret: InstallationSecret | None = Field(
        None,
        description="The secret under which keys and sessions are hashed. Default: the data folder's file `secret`.",
    )
    session_hours: float = Field(24.0, gt=0, le=8760, description="Hours that a sign-in lasts.")
    proxy: ProxySignIn = Field(ProxySignIn(), description="Signing in by a trusted proxy.")
    oidc: OidcSignIn = Field(OidcSignIn(), description="Signing in by an OpenID Connect provider.")
    body_limit: int = Field(32 * 1024 * 1024, ge=1024, description="Bytes that a request body may have.")
    client_stall: float = Field(
        30.0, gt=0, description="Seconds that a client may take nothing of its answer before it is cut off."
    )
    live: Literal["sse", "poll"] = Field("sse", description="How open pages get fresh figures.")
    tick: float = Field(5.0, ge=0.05, le=60, description="Seconds between two moves of the controller.")
    require_reason: bool = Field(False, description="Whether every change by a person must give a reason.")
    decision_retention_days: float = Field(90.0, gt=0, description="Days that decisions are kept.")
    call_log_rows: int = Field(1_000_000, ge=0, description="Calls kept in the call log, at most; 0 keeps none.")
    call_log_days: float = Field(30.0, gt=0, description="Days that calls are kept in the call log.")
    file_key: FileKey | None = Field(
        None, description="Encrypts the files of batches at rest: a secret of at least 32 characters."
    )
    batch_file_bytes: int = Field(200 * 1024 * 1024, ge=1024, description="Bytes that a batch's input file may have.")
    batch_lines: int = Field(50_000, ge=1, le=10_000_000, description="Requests that a batch may have.")
    batch_retention_days: float = Field(
        30.0, gt=0, description="Days that files, and the requests of ended batches, are kept."
    )
    webhook_hosts: Names = Field(
        (), description="Hosts to which webhooks may go although they are not public, or do not speak https."
    )
    shutdown_grace: int = Field(5, ge=0, description="Seconds that running answers get at the stop.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take the given values alone, so that settings made in code depend on nothing outside."""
        return (init_settings,)

    @model_validator(mode="after")
    def _proxy_is_trusted(self) -> Self:
        if self.proxy.header is not None and not self.trusted_proxies:
            raise ValueError("proxy.header is set, but no trusted_proxies; name the proxy's address there")
        return self

    @model_validator(mode="after")
    def _one_story(self) -> Self:
        if self.pools:
            self._no_single_pool()
        elif self.slots is not None and self.upstream_capacity is not None:
            raise ValueError("slots and upstream_capacity exclude each other; give one of them")
        else:
            _single_pool(self, self.upstream or "http://localhost/v1")
        _unique("pools", [pool.name for pool in self.pools])
        _unique("keys", [key.name for key in self.keys])
        if len({key.key.get_secret_value() for key in self.keys}) < len(self.keys):
            raise ValueError("keys: two keys have the same value; give each its own")
        return self

    def _no_single_pool(self) -> None:
        single = {*PoolTuning.model_fields, "upstream", "upstream_key", "slots"} & self.model_fields_set
        if single:
            raise ValueError(f"{min(single)} is for a single pool, but [[pools]] are given; set it in each pool")

    @property
    def pool_configs(self) -> tuple[PoolConfig, ...]:
        """The pools to serve: those of `pools`, else the single one. Raises ConfigError where no upstream is given."""
        if self.pools:
            return self.pools
        if self.upstream is None:
            raise ConfigError(
                "upstream is not set: give the model server's address, as in TIDEGATE_UPSTREAM=http://127.0.0.1:8000/v1"
            )
        return (_single_pool(self, self.upstream),)

    @property
    def database_url(self) -> str:
        """The database's URL, with its async driver; by default SQLite in the data folder."""
        if self.database is not None:
            return self.database.get_secret_value()
        return f"sqlite+aiosqlite:///{self.data.absolute() / 'tidegate.db'}"

    def secrets(self) -> tuple[str, ...]:
        """Return every secret among the settings, for those who must keep them out of what they write."""
        pools, keys = (pool.api_key for pool in self.pools), (key.key for key in self.keys)
        own = (self.upstream_key, self.database, self.file_key, self.secret, self.oidc.client_secret)
        found = [*own, *pools, *keys]
        password = urlsplit(self.database.get_secret_value()).password if self.database else None
        return (
            *(secret.get_secret_value() for secret in found if secret is not None),
            *([password] if password else []),
        )


def slots_for(capacity: int) -> int:
    """Return the slots advised for an upstream that takes `capacity` requests at once: three quarters, at least 1."""
    return max(1, int(capacity * CAPACITY_SHARE))


def budgets_of(config: BudgetConfig) -> Budgets:
    """Return the budgets as the rules use them."""
    return Budgets(config.first_token_s, config.per_token_ms, config.error_rate)


def pool_settings(config: PoolConfig) -> PoolSettings:
    """Return what operators may change of a pool, as the file has it, defaults that depend on others filled in."""
    reserve = default_reserve(config.slots) if config.reserve is None else config.reserve
    ceiling = config.ceiling
    if ceiling is None:
        ceiling = default_ceiling(config.slots, reserve, pull_backs=config.pull_backs)
    return PoolSettings(
        name=config.name,
        slots=config.slots,
        reserve=reserve,
        headroom=default_headroom(config.slots) if config.headroom is None else config.headroom,
        floor=config.floor if "floor" in config.model_fields_set else min(config.floor, ceiling),
        ceiling=ceiling,
        budgets=budgets_of(config.budgets),
        model_budgets={model: budgets_of(budgets) for model, budgets in config.model_budgets.items()},
    )


def _single_pool(settings: Settings, upstream: str) -> PoolConfig:
    given: dict[str, Any] = {
        name: getattr(settings, name) for name in PoolTuning.model_fields if name in settings.model_fields_set
    }
    if settings.slots is not None:
        given["slots"] = settings.slots
    try:
        return PoolConfig(base_url=upstream, api_key=settings.upstream_key, **given)
    except ValidationError as error:
        raise ValueError(error.errors(include_input=False)[0]["msg"].removeprefix("Value error, ")) from None


def _unique(what: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{what}: {twice[0]!r} is given twice; names must differ")
