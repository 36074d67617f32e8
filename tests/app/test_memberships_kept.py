"""What is kept of memberships between two pages: read once, and read anew when the library is another one."""

import dataclasses

from sqlalchemy import Connection, event

from app import queries
from tests.app.conftest import Browser


def test_memberships_are_read_once_for_each_library(shared: Browser) -> None:
    revision = shared.services.worker.info.revision if shared.services.worker.info else ""
    asked: list[str] = []

    def note(_connection: Connection, _cursor: object, statement: str, *_rest: object) -> None:
        asked.append(statement)

    with shared.services.database.read() as session:
        facts = queries.concept_facts(session, revision)
        other = {name: dataclasses.replace(fact, library="another") for name, fact in facts.items()}
        neurons = [(0, index) for index in range(40)]
        first = queries.memberships(session, facts, neurons)
        event.listen(session.connection(), "before_cursor_execute", note)
        assert first, "some of these neurons belong to concepts"
        assert queries.memberships(session, facts, neurons) == first
        assert not asked
        assert queries.memberships(session, other, neurons[:10]) == {n: first[n] for n in neurons[:10] if n in first}
        assert len(asked) == 1
        assert queries.memberships(session, dict(list(facts.items())[:0]), neurons) == {}
