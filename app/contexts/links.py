"""The links that many contexts hold."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A link that selects one of several states of a page (a real URL; the state is in the query string). `value` is
    its value where the choice is an option of a form's select ('' = no restriction). `off`: why it cannot be chosen."""

    label: str
    href: str
    selected: bool
    value: str = ""
    off: str = ""
