"""Where settings come from, and which source wins."""

from pathlib import Path
from typing import Any

import pytest

from core.errors import ConfigError
from core.sources import Loaded, load, shown

CANARY = "sk-canary-0123456789"
UPSTREAM = "http://127.0.0.1:8000/v1"


class Sources:
    """The four sources of a start in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "tidegate.toml"
        self.env_file = folder / ".env"

    def load(
        self, toml: str = "", env: str = "", environ: dict[str, str] | None = None, given: dict[str, Any] | None = None
    ) -> Loaded:
        self.file.write_text(toml)
        self.env_file.write_text(env)
        return load(file=self.file, env_file=self.env_file, environ=environ or {}, given=given)

    def fault(self, *args: Any, **fields: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            self.load(*args, **fields)
        line = str(caught.value)
        assert "\n" not in line
        assert CANARY not in line
        return line


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return Sources(tmp_path)


def test_the_command_line_beats_the_environment_which_beats_dotenv_which_beats_the_file(sources: Sources) -> None:
    loaded = sources.load(
        "port = 1\nslots = 1\nfloor = 1\ntick = 1.5\n",
        "TIDEGATE_PORT=2\nTIDEGATE_SLOTS=2\nTIDEGATE_FLOOR=0\n",
        {"TIDEGATE_PORT": "3", "TIDEGATE_SLOTS": "3"},
        {"port": "4", "host": None},
    )
    settings = loaded.settings
    assert (settings.port, settings.slots, settings.floor, settings.tick) == (4, 3, 0, 1.5)
    wanted = {"port": "command line", "slots": "environment", "floor": ".env", "tick": "file", "host": "default"}
    assert {name: loaded.origin[name] for name in wanted} == wanted


def test_nested_values_merge_across_sources(sources: Sources) -> None:
    loaded = sources.load(
        "[budgets]\nfirst_token_s = 2.0\nper_token_ms = 50\n[batch_timeouts]\ntotal = 60\n",
        environ={"TIDEGATE_BUDGETS__FIRST_TOKEN_S": "0.5", "TIDEGATE_BATCH_TIMEOUTS__CONNECT": "1"},
    )
    budgets, batch = loaded.settings.budgets, loaded.settings.batch_timeouts
    assert (budgets.first_token_s, budgets.per_token_ms, budgets.error_rate) == (0.5, 50, 0.02)
    assert (batch.connect, batch.first_byte, batch.total) == (1, 600, 60)
    assert loaded.origin["budgets.first_token_s"] == "environment"
    assert loaded.origin["budgets.per_token_ms"] == "file"
    assert loaded.origin["budgets.error_rate"] == "default"


@pytest.mark.parametrize(
    ("variable", "value", "field", "wanted"),
    [
        ("TIDEGATE_RESERVE", "3", "reserve", 3),
        ("TIDEGATE_INTERACTIVE_QUEUE", "5", "interactive_queue", 5),
        ("TIDEGATE_PULL_BACKS", "false", "pull_backs", False),
        ("TIDEGATE_MODELS", "a*, b", "models", ("a*", "b")),
        ("TIDEGATE_ALLOWED_HOSTS", "gate.example", "allowed_hosts", ("gate.example",)),
        ("TIDEGATE_ALIASES", '{"gpt": "llama"}', "aliases", {"gpt": "llama"}),
        ("TIDEGATE_UPSTREAM", "http://h", "upstream", "http://h/v1"),
        ("TIDEGATE_DATA", "/somewhere", "data", Path("/somewhere")),
    ],
)
def test_limits_of_the_single_pool_come_from_the_environment(
    sources: Sources, variable: str, value: str, field: str, wanted: object
) -> None:
    loaded = sources.load(environ={variable: value})
    assert getattr(loaded.settings, field) == wanted
    assert loaded.warnings == ()


def test_an_empty_variable_is_as_good_as_none(sources: Sources) -> None:
    assert sources.load(environ={"TIDEGATE_UPSTREAM": "", "TIDEGATE_SLOTS": ""}).settings.slots is None


def test_capacity_of_a_later_source_replaces_slots_of_an_earlier(sources: Sources) -> None:
    loaded = sources.load(f'slots = 4\nupstream = "{UPSTREAM}"', environ={"TIDEGATE_UPSTREAM_CAPACITY": "100"})
    assert loaded.settings.pool_configs[0].slots == 75
    assert loaded.origin["slots"] == "default"


def test_capacity_and_slots_from_one_source_are_refused(sources: Sources) -> None:
    line = sources.fault(environ={"TIDEGATE_UPSTREAM_CAPACITY": "100", "TIDEGATE_SLOTS": "8"})
    assert line == "slots and upstream_capacity exclude each other; give one of them"


def test_pools_and_keys_come_from_the_file_with_secrets_from_the_environment(sources: Sources) -> None:
    toml = """
        [[pools]]
        name = "big"
        base_url = "http://big:8000"
        api_key = "env:BIG_KEY"
        models = ["llama-*"]
        upstream_capacity = 32
        [[keys]]
        name = "chat"
        key = "env:CHAT_KEY"
        lanes = ["interactive"]
    """
    settings = sources.load(toml, f"CHAT_KEY={CANARY}2\n", {"BIG_KEY": CANARY}).settings
    (pool,), (key,) = settings.pools, settings.keys
    assert (pool.slots, pool.models) == (24, ("llama-*",))
    assert pool.api_key is not None
    assert pool.api_key.get_secret_value() == CANARY
    assert key.key.get_secret_value() == CANARY + "2"


def test_a_missing_secret_is_named_with_its_setting(sources: Sources) -> None:
    line = sources.fault('upstream_key = "env:NOT_THERE"')
    assert line == "upstream_key = 'env:NOT_THERE': the environment variable NOT_THERE is not set; set it"


@pytest.mark.parametrize(
    ("toml", "environ", "given", "line"),
    [
        ("", {"TIDEGATE_SLOTS": "abc"}, {}, "TIDEGATE_SLOTS = 'abc': must be a valid integer"),
        ("", {"TIDEGATE_SLOTS": "0"}, {}, "TIDEGATE_SLOTS = '0': must be greater than or equal to 1"),
        ("", {"TIDEGATE_UPSTREAM": "host:1"}, {}, "TIDEGATE_UPSTREAM: must begin with http://"),
        ("", {"TIDEGATE_UPSTREAM": f"http://u:{CANARY}@h"}, {}, "TIDEGATE_UPSTREAM: must not carry a user name"),
        ("", {"TIDEGATE_UPSTREAM_KEY": f"{CANARY} x"}, {}, "TIDEGATE_UPSTREAM_KEY: must be printable ASCII"),
        ("", {"TIDEGATE_DATABASE": CANARY}, {}, "TIDEGATE_DATABASE: must begin with sqlite:///"),
        ("", {"TIDEGATE_ALIASES": CANARY}, {}, "TIDEGATE_ALIASES: is no valid JSON"),
        ("", {"TIDEGATE_BUDGETS__FIRST_TOKEN_S": "-1"}, {}, "TIDEGATE_BUDGETS__FIRST_TOKEN_S = '-1': must be greater"),
        ("", {"TIDEGATE_LOG_LEVEL": "loud"}, {}, "TIDEGATE_LOG_LEVEL = 'loud': must be 'debug', 'info'"),
        ("", {}, {"port": "http"}, "--port = 'http': must be a valid integer"),
        ("port = 99999", {}, {}, "port in tidegate.toml = 99999: must be less than or equal to 65535"),
        ("prot = 1", {}, {}, "prot in tidegate.toml: is not a setting; did you mean port?"),
        ("[budgets]\nerror = 1", {}, {}, "budgets.error in tidegate.toml: is not a setting; did you mean error_rate?"),
        ('[[keys]]\nname = "k"', {}, {}, "keys[0].key in tidegate.toml: is missing"),
        ('[[keys]]\nname = "k"\nkey = "1"\nlain = 1', {}, {}, "keys[0].lain in tidegate.toml: is not a setting; did"),
        ("slots = [", {}, {}, "config = "),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_setting_value_and_mend(
    sources: Sources, toml: str, environ: dict[str, str], given: dict[str, Any], line: str
) -> None:
    assert sources.fault(toml, environ=environ, given=given).startswith(line)


@pytest.mark.parametrize(
    "toml", [f'keys = ["{CANARY}"]', f'pools = ["http://user:{CANARY}@host"]', f'keys = "{CANARY}"']
)
def test_what_may_be_a_secret_in_the_wrong_place_is_not_repeated(sources: Sources, toml: str) -> None:
    assert "must be a valid" in sources.fault(toml)


def test_a_wrong_value_within_a_list_is_told(sources: Sources) -> None:
    toml = '[[pools]]\nbase_url = "http://x"\nslots = "many"'
    assert sources.fault(toml).startswith("pools[0].slots in tidegate.toml = 'many': must be a valid integer")


def test_a_dotenv_that_is_no_text_is_named(sources: Sources) -> None:
    sources.env_file.write_bytes(b"TIDEGATE_SLOTS=\xff\xfe")
    with pytest.raises(ConfigError, match=r"\.env': is no UTF-8; mend it$"):
        load(env_file=sources.env_file, environ={})


def test_further_faults_are_counted(sources: Sources) -> None:
    assert sources.fault("port = -1\nslots = 0\n").endswith("(and 1 more)")


def test_a_settings_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml.*cannot be read"):
        load(file=tmp_path / "absent.toml", environ={}, env_file=None)


def test_an_unknown_variable_is_told_with_what_was_meant(sources: Sources) -> None:
    loaded = sources.load(environ={"TIDEGATE_SLOT": "3", "TIDEGATE_XYZ": "1", "OTHER": "1"})
    assert loaded.warnings == (
        "TIDEGATE_SLOT is not a setting and is ignored; did you mean TIDEGATE_SLOTS?",
        "TIDEGATE_XYZ is not a setting and is ignored",
    )


def test_what_is_shown_has_every_secret_masked(sources: Sources) -> None:
    """R101 kalyan-1845/ai-code-reviewer#785: settings dumped at start-up."""
    toml = (
        f'[[pools]]\nname = "a"\nbase_url = "{UPSTREAM}"\napi_key = "{CANARY}"\n[[keys]]\nname = "k"\nkey = "{CANARY}"'
    )
    loaded = sources.load(toml, environ={"TIDEGATE_DATABASE": f"postgresql://u:{CANARY}@db/t"})
    text = repr(shown(loaded.settings)) + repr(loaded)
    assert CANARY not in text
    assert shown(loaded.settings)["pools"][0]["api_key"] == "********"


def test_every_setting_has_an_origin(sources: Sources) -> None:
    loaded = sources.load()
    assert set(shown(loaded.settings)) == set(loaded.origin)
    assert set(loaded.origin.values()) == {"default"}
