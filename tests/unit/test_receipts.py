"""Receipts: one for what is asked twice, moves that the table allows, targets that are filed once."""

import itertools
import sqlite3
from pathlib import Path

import pytest

from ingest.contracts.erasure import erasure_digest
from ingest.receipts import RECEIPT_TRANSITIONS, ReceiptError, Receipts, ReceiptState

PSEUDONYM = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def book(tmp_path: Path) -> Receipts:
    return Receipts(tmp_path / "receipts.db", clock=itertools.count(100.0).__next__)


def test_what_is_asked_again_while_it_is_at_work_is_one_receipt(book: Receipts) -> None:
    first = book.request("subject", PSEUDONYM)
    assert book.request("subject", PSEUDONYM) == first
    assert book.request("session", PSEUDONYM).receipt_id != first.receipt_id
    for state in (ReceiptState.FILED, ReceiptState.REMOVING, ReceiptState.COMPLETE):
        book.move(first.receipt_id, state)
    assert book.request("subject", PSEUDONYM).receipt_id != first.receipt_id
    assert [receipt.target for receipt in book.unfinished()] == ["session", "subject"]


def test_a_book_of_another_version_is_told_with_what_to_do(book: Receipts, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "receipts.db") as db:
        db.execute("ALTER TABLE receipts DROP COLUMN kafka_ends")
    with pytest.raises(ReceiptError, match=r"has no receipts\.kafka_ends: another version .* Move it.* ask again"):
        Receipts(tmp_path / "receipts.db")


def test_the_file_holds_digests_only(book: Receipts, tmp_path: Path) -> None:
    book.request("subject", PSEUDONYM)
    files = [path.read_bytes() for path in tmp_path.glob("receipts.db*")]
    assert not any(PSEUDONYM.encode() in data for data in files)
    assert any(erasure_digest("subject", PSEUDONYM).encode() in data for data in files)


def test_a_move_that_the_table_does_not_have_is_refused(book: Receipts) -> None:
    for state, to in itertools.product(ReceiptState, ReceiptState):
        receipt = book.request("subject", f"{state} {to}")
        path = {
            ReceiptState.REQUESTED: [],
            ReceiptState.FILED: [ReceiptState.FILED],
            ReceiptState.REMOVING: [ReceiptState.FILED, ReceiptState.REMOVING],
            ReceiptState.RETAINED: [ReceiptState.FILED, ReceiptState.REMOVING, ReceiptState.RETAINED],
            ReceiptState.COMPLETE: [ReceiptState.FILED, ReceiptState.REMOVING, ReceiptState.COMPLETE],
        }[state]
        for step in path:
            book.move(receipt.receipt_id, step)
        if to is state or to in RECEIPT_TRANSITIONS[state]:
            assert book.move(receipt.receipt_id, to).state is to
        else:
            with pytest.raises(ReceiptError, match=f"is {state} and cannot become {to}"):
                book.move(receipt.receipt_id, to)


def test_targets_are_told_once_and_filed_once(book: Receipts) -> None:
    name = book.request("subject", PSEUDONYM).receipt_id
    found = [("turn", erasure_digest("turn", f"t{number}")) for number in range(3)]
    assert book.add_targets(name, found) == 3
    assert book.add_targets(name, [*found, ("turn", erasure_digest("turn", "t3"))]) == 1
    unfiled = book.unfiled(name)
    assert len(unfiled) == len(book.targets(name)) == 5
    assert {(erasure.erasure_id, erasure.requested_at) for erasure in unfiled} == {(name, book.get(name).requested_at)}
    assert book.filed_at(name) == 0.0
    book.filed(name, unfiled[:2], at=107.0)
    assert len(book.unfiled(name)) == 3
    assert book.filed_at(name) == 107.0


def test_what_was_removed_adds_up_and_what_learned_stays(book: Receipts) -> None:
    name = book.request("subject", PSEUDONYM).receipt_id
    book.note(name, removed={"turns": 2, "pages": 0}, checkpoints=["p/c2"])
    noted = book.note(name, removed={"turns": 1, "ids": 4}, checkpoints=["p/c1"], waits="a spool")
    assert (noted.removed, noted.checkpoints, noted.waits) == ({"ids": 4, "turns": 3}, ("p/c1", "p/c2"), "a spool")


def test_a_receipt_that_is_not_there_is_told(book: Receipts) -> None:
    with pytest.raises(ReceiptError, match='no receipt "er-1": `everloop forget status`'):
        book.get("er-1")
