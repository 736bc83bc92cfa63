"""The documentation site: `sphinx-build -W --keep-going docs OUT`."""

from importlib.metadata import version as installed

from sphinx.application import Sphinx

project = "shardtui"
version = release = installed(project)
extensions = ["myst_parser"]
exclude_patterns = ["data", "examples"]
myst_heading_anchors = 4  # those that GitHub makes
html_theme = "furo"
html_title = f"{project} {version}"
html_copy_source = False


def link_to_the_page(_: Sphinx, __: str, source: list[str]) -> None:
    """Links to CONTRIBUTING.md go to the page that includes it."""
    source[0] = source[0].replace("](../CONTRIBUTING.md", "](/contributing.md")


def setup(app: Sphinx) -> None:
    app.connect("source-read", link_to_the_page)
