"""What an erasure covers, compared by digests: in Python as in SQL."""

import duckdb

from ingest.contracts.erasure import erasable, erasure_digest
from ingest.contracts.feedback import Feedback, Kind
from ingest.statements import statements
from tests.log_events import accept, turn


def test_sql_and_python_make_the_same_digest():
    with duckdb.connect() as join:
        for statement, _ in statements("functions.sql", {}):
            join.execute(statement)
        [made] = join.execute("SELECT erasure_digest('subject', 'anna')").fetchone() or ()
    assert made == erasure_digest("subject", "anna")


def test_a_turn_falls_under_its_subject_its_session_and_itself():
    assert erasable(turn("t", subject="u", session="s")) == (("subject", "u"), ("session", "s"), ("turn", "t"))
    assert erasable(turn("t", subject="", session="")) == (("turn", "t"),)


def test_feedback_falls_under_its_sender_and_what_it_is_about():
    assert erasable(accept("f", "t", subject="u")) == (("subject", "u"), ("turn", "t"))
    of_session = Feedback(
        feedback_id="f", target="session", target_id="s", kind=Kind.ACCEPT, key_id="k", occurred_at=1, received_at=1
    )
    assert erasable(of_session) == (("session", "s"),)
