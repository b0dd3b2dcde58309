"""Whatever a file holds, it is either a configuration or a list of faults with places."""

from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from twr.config.checks import cross_problems, model_problems
from twr.config.document import parse
from twr.config.env_file import parse_env
from twr.config.settings import FileSettings
from twr.errors import ConfigError

EXAMPLE = (Path(__file__).parents[2] / "etc" / "twr.yaml").read_text()
KEYS = sorted(
    {"routes", "name", "match", "except", "backoff", "first", "max", "webhook", "target_url"}
    | set(FileSettings.model_fields)
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["10s", "1MiB", "http://[", "redis+sentinel://[/a", "unix:/x", "chat", "::1"])
)
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=25,
)


def faults(text: str) -> list[str]:
    """The faults of a file of that text, as `load` collects them."""
    try:
        document = parse(text, "twr.yaml")
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    found = [*document.problems, *cross_problems(document)]
    try:
        FileSettings.model_validate(document.data)
    except ValidationError as error:
        found += model_problems(document, error)
    return [str(problem) for problem in found]


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), trees, min_size=1, max_size=5))
def test_any_tree_is_refused_in_lines(tree: dict[str, Any]) -> None:
    """No value in any place raises; each fault is one line that begins with its place."""
    found = faults(yaml.safe_dump(tree, allow_unicode=True))
    assert found
    for fault in found:
        assert fault.startswith("twr.yaml:")
        assert "\n" not in fault


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, len(EXAMPLE)),
    st.integers(0, 12),
    st.text(max_size=6) | st.sampled_from(["*a", "&a ", "<<: *a", "!!x ", "\t", "- ", ": ", "? "]),
)
def test_any_slip_in_the_example_is_told_or_harmless(at: int, length: int, slip: str) -> None:
    """Text put anywhere into the example leads to a valid file or to faults with places."""
    for fault in faults(EXAMPLE[:at] + slip + EXAMPLE[at + length :]):
        assert fault.startswith("twr.yaml:")
        assert "\n" not in fault


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from("AB=\"'\\ #;\n\t$x-") | st.characters(), max_size=40))
def test_any_environment_file_ends(text: str) -> None:
    """The text of an environment file gives variables, or faults with places."""
    assert all(name.isidentifier() for name in variables(text))


def variables(text: str) -> list[str]:
    """The names in an environment file of that text; the first words of its faults, if any."""
    try:
        return list(parse_env(text, "twr.env"))
    except ConfigError as error:
        return [problem.file.partition(".")[0] for problem in error.problems if problem.line]
