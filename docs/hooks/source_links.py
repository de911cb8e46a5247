"""Links from pages to source files: to the repository if `repo_url` is set, else the path as a tooltip.

Source files are not part of the site, so mkdocs would report links to them as broken.
"""

import re
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\((?:\.\./)+((?:ml_pipeline|examples|benchmarks|tests)/[^)\s]+)\)")


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """The page with its links to source files changed. mkdocs calls this for each page."""
    return with_source_links(markdown, repo_url=config["repo_url"])


def with_source_links(markdown: str, *, repo_url: str | None) -> str:
    """The same for a given repository.

    >>> with_source_links("See [`ppo_loss`](../ml_pipeline/ppo_loss.py).", repo_url="https://example.org/project/")
    'See [`ppo_loss`](https://example.org/project/blob/main/ml_pipeline/ppo_loss.py).'
    >>> with_source_links("See [`ppo_loss`](../ml_pipeline/ppo_loss.py).", repo_url=None)
    'See <span title="ml_pipeline/ppo_loss.py">`ppo_loss`</span>.'
    """
    link = rf"[\1]({repo_url.rstrip('/')}/blob/main/\2)" if repo_url else r'<span title="\2">\1</span>'
    return _LINK.sub(link, markdown)
