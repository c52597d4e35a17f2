"""Unmodified clients, each with an interpreter and libraries of its own, against a real gateway.

`make clients` installs them below a folder and names it in TIDEGATE_CLIENTS.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Gate, gate

pytestmark = pytest.mark.clients
SCRIPTS = Path(__file__).parent / "clients"
LLM_MODEL = """\
- model_id: tg
  model_name: m
  api_base: {base}
"""


@pytest.fixture(scope="module")
def clients() -> Path:
    folder = os.environ.get("TIDEGATE_CLIENTS")
    if not folder:
        if os.environ.get("CI"):
            pytest.fail("TIDEGATE_CLIENTS is not set, and in CI nothing is skipped")
        pytest.skip("the clients are not installed; `make clients` installs and runs them")
    return Path(folder)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with gate(tmp_path_factory.mktemp("data"), slots=8) as running:
        yield running


def run(command: list[str], house: Gate, **environment: str) -> str:
    env = {**os.environ, "BASE_URL": f"{house.url}/v1", "OPENAI_API_KEY": "any", **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("client", "script"),
    [
        ("openai3", "chat.py"),
        ("openai1", "chat.py"),
        ("litellm", "use_litellm.py"),
        ("langchain", "use_langchain.py"),
        ("openai3", "batch.py"),
        ("openai1", "batch.py"),
        ("litellm", "litellm_batch.py"),
    ],
)
def test_a_python_client_works_unmodified(clients: Path, house: Gate, client: str, script: str) -> None:
    python = clients / client / "bin" / "python"
    assert "ok" in run([str(python), str(SCRIPTS / "python" / script)], house)


@pytest.mark.parametrize("name", ["chat.mjs", "batch.mjs", "ai-batch.mjs"])
def test_openai_for_node_and_the_ai_sdk_work_unmodified(clients: Path, house: Gate, name: str) -> None:
    script = clients / "node" / name
    script.write_text((SCRIPTS / "node" / name).read_text())
    assert "ok " in run(["node", str(script)], house)


@pytest.mark.parametrize("options", [[], ["--no-stream"]])
def test_the_llm_command_works_unmodified(clients: Path, house: Gate, tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(LLM_MODEL.format(base=f"{house.url}/v1"))
    command = [str(clients / "llm" / "bin" / "llm"), "-m", "tg", *options, "-o", "max_tokens", "5", "hello"]
    assert run(command, house, LLM_USER_PATH=str(tmp_path)).strip()
