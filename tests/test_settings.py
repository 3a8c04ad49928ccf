"""Environment → settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.errors import ConfigError
from executor.settings import ImageSource, Settings, values_of


def test_empty_environment_gives_the_defaults(tmp_path: Path) -> None:
    """With nothing set, the default engine is used and state goes below the home."""
    settings = Settings.load({"HOME": str(tmp_path)})

    assert settings == Settings(state_directory=tmp_path / ".local/state/executor")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOME": "/home/a"}, "/home/a/.local/state/executor"),
        ({"HOME": "/home/a", "XDG_STATE_HOME": "/state"}, "/state/executor"),
        ({"HOME": "/home/a", "XDG_STATE_HOME": "relative"}, "/home/a/.local/state/executor"),
        ({"XDG_STATE_HOME": "/state", "EXECUTOR_STATE_DIR": "/mine"}, "/mine"),
    ],
)
def test_state_directory_has_three_sources(environment: dict[str, str], expected: str) -> None:
    """EXECUTOR_STATE_DIR comes before XDG_STATE_HOME, which comes before the home."""
    assert Settings.load(environment).state_directory == Path(expected)


def test_every_variable_is_read(tmp_path: Path) -> None:
    """Each variable lands in its field."""
    config = tmp_path / "mine.toml"
    config.touch()

    settings = Settings.load(
        {
            "HOME": "/home/a",
            "DOCKER_HOST": "tcp://engine:2376",
            "DOCKER_TLS_VERIFY": "1",
            "DOCKER_CERT_PATH": "/certificates",
            "EXECUTOR_ALLOW_INSECURE_ENGINE": "yes",
            "EXECUTOR_CATALOG": str(config),
            "EXECUTOR_IMAGE_SOURCE": "packages",
            "EXECUTOR_IMAGE_REFERENCE": "mirror:5000/debian:{release}",
            "EXECUTOR_REGISTRY_TIMEOUT": "2.5",
        }
    )

    assert settings == Settings(
        docker_host="tcp://engine:2376",
        tls_verify=True,
        cert_path=Path("/certificates"),
        allow_insecure_engine=True,
        state_directory=Path("/home/a/.local/state/executor"),
        config_file=config,
        image_source=ImageSource.PACKAGES,
        image_reference="mirror:5000/debian:{release}",
        registry_timeout=2.5,
    )


def test_usual_configuration_file_is_found_where_it_exists(tmp_path: Path) -> None:
    """`$XDG_CONFIG_HOME/executor/catalog.toml` is used without being named."""
    environment = {"HOME": "/home/a", "XDG_CONFIG_HOME": str(tmp_path)}
    assert Settings.load(environment).config_file is None

    file = tmp_path / "executor/catalog.toml"
    file.parent.mkdir()
    file.touch()

    assert Settings.load(environment).config_file == file


def test_all_faults_are_reported_at_once() -> None:
    """One error names every variable that is wrong."""
    with pytest.raises(ConfigError) as caught:
        Settings.load(
            {
                "DOCKER_HOST": "ssh://somewhere",
                "EXECUTOR_STATE_DIR": "relative/path",
                "EXECUTOR_CATALOG": "/does/not/exist.toml",
                "EXECUTOR_IMAGE_SOURCE": "internet",
                "EXECUTOR_REGISTRY_TIMEOUT": "soon",
                "EXECUTOR_ALLOW_INSECURE_ENGINE": "perhaps",
            }
        )

    names = sorted(fault.partition(":")[0] for fault in caught.value.faults)
    assert names == [
        "DOCKER_HOST",
        "EXECUTOR_ALLOW_INSECURE_ENGINE",
        "EXECUTOR_CATALOG",
        "EXECUTOR_IMAGE_SOURCE",
        "EXECUTOR_REGISTRY_TIMEOUT",
        "EXECUTOR_STATE_DIR",
    ]


def test_values_are_those_of_variables_that_are_set() -> None:
    """An empty one counts as none; what is in one is not touched."""
    assert values_of(["A", "B", "C"], {"A": " x\n", "B": "", "D": "y"}) == {"A": " x\n"}


def test_model_of_the_command_line() -> None:
    """A named model goes before the environment's; without a key there is nobody to ask."""
    given = Settings.load({"ANTHROPIC_API_KEY": "key", "ANTHROPIC_MODEL": "one"})
    assert given.with_model("two").model_name == "two"
    assert given.with_model(None).model_name == "one"
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY"):
        Settings.load({}).with_model("two")
