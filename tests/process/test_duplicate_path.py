"""The four of the duplicate path over real sockets and two processes: the same key twice, two at the same
moment, other parameters, and a crash between change and record."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from tests.process.app import COMMITTED, FLUSHED
from tests.process.server import DEATH_SECONDS_MAX, gate
from tests.process.shop import Shop
from tests.process.trial import LOST, Client, Purchase, check

CROWD = 20
BUSY_SECONDS_DEFAULT = 5.0


def test_the_same_key_twice_gives_the_same_answer(shop: Shop, client: Client) -> None:
    purchase = Purchase()
    first = client.attempt(shop.server.url, purchase)
    again = client.attempt(shop.server.url, purchase)
    elsewhere = client.attempt(shop.other.url, purchase)
    assert (first.status, first.replayed) == (201, False)
    assert (again.status, again.replayed) == (201, True)
    assert (elsewhere.status, elsewhere.replayed) == (201, True)
    assert again.body == elsewhere.body == first.body
    assert client.count(shop.other.url, purchase) == 1
    assert shop.ledger.counts(purchase) == (1, 1)


def test_a_rival_in_the_same_process_is_told_at_once(shop: Shop, client: Client) -> None:
    purchase = Purchase()
    with gate() as closed, ThreadPoolExecutor() as pool:
        first = pool.submit(client.attempt, shop.server.url, purchase, gate=closed.port)
        closed.wait_until_reached()
        rival = client.attempt(shop.server.url, purchase)
        assert (rival.status, rival.code, rival.retry_after) == (409, "in-progress", "1")
        assert shop.ledger.counts(purchase) == (0, 0)
        closed.open()
        assert (first.result().status, first.result().replayed) == (201, False)
    client.buy(shop.server.url, purchase)
    check(shop.ledger, purchase)


def test_a_rival_in_another_process_never_runs_too(shop: Shop, client: Client) -> None:
    """PostgreSQL: 409 at once. SQLite, which has one writer: the rival waits for it and then replays."""
    purchase = Purchase()
    with gate() as closed, ThreadPoolExecutor() as pool:
        first = pool.submit(client.attempt, shop.server.url, purchase, gate=closed.port)
        closed.wait_until_reached()
        rival = pool.submit(client.attempt, shop.other.url, purchase)
        if not shop.single_writer:
            assert (rival.result().status, rival.result().code) == (409, "in-progress")
        closed.open()
        if shop.single_writer:
            assert (rival.result().status, rival.result().replayed) == (201, True)
            assert rival.result().body == first.result().body
        assert (first.result().status, first.result().replayed) == (201, False)
    client.buy(shop.other.url, purchase)
    check(shop.ledger, purchase)


def test_an_unrelated_key_meets_no_conflict(shop: Shop, client: Client) -> None:
    """PostgreSQL: it runs. SQLite: it waits ``busy_seconds`` for its turn, then 503 store-busy; never 409."""
    purchase, unrelated = Purchase(), Purchase()
    shop.other.kill()
    shop.other.start(busy_seconds=0.2)
    try:
        with gate() as closed, ThreadPoolExecutor() as pool:
            first = pool.submit(client.attempt, shop.server.url, purchase, gate=closed.port)
            closed.wait_until_reached()
            started = time.monotonic()
            seen = client.attempt(shop.other.url, unrelated)
            waited = time.monotonic() - started
            closed.open()
            assert first.result().status == 201
        assert (seen.status, seen.code) == ((503, "store-busy") if shop.single_writer else (201, None))
        assert waited < BUSY_SECONDS_DEFAULT
        client.buy(shop.other.url, unrelated)
        check(shop.ledger, unrelated)
    finally:
        shop.other.kill()
        shop.other.start(busy_seconds=BUSY_SECONDS_DEFAULT)


@pytest.mark.parametrize("crowd", [2, CROWD])
def test_many_at_the_same_moment_make_one_order(shop: Shop, client: Client, crowd: int) -> None:
    """PP-13: twenty at the same moment over two processes, twenty executions."""
    purchase = Purchase()
    start = Barrier(crowd)

    def buy(number: int) -> None:
        server = (shop.server, shop.other)[number % 2]
        start.wait()
        client.buy(server.url, purchase)

    with ThreadPoolExecutor(crowd) as pool:
        list(pool.map(buy, range(crowd)))
    assert len(purchase.finals) == crowd
    assert {(seen.status, seen.code) for seen in purchase.seen} <= {
        (201, None),
        (409, "in-progress"),
        (503, "store-busy"),
    }
    assert [seen.replayed for seen in purchase.finals if seen is not None].count(False) == 1
    check(shop.ledger, purchase)
    assert client.count(shop.server.url, purchase) == 1


def test_other_parameters_are_refused_and_the_record_stays(shop: Shop, client: Client) -> None:
    purchase = Purchase(amount=1200)
    first = client.attempt(shop.server.url, purchase)
    before = shop.ledger.records(purchase)
    other = client.attempt(shop.other.url, purchase, amount=9900)
    assert (other.status, other.code) == (422, "key-reused")
    assert shop.ledger.records(purchase) == before
    assert [order.amount for order in shop.ledger.orders(purchase)] == [1200]
    retry = client.attempt(shop.other.url, purchase)
    assert (retry.status, retry.replayed, retry.body) == (201, True, first.body)


@pytest.mark.parametrize("point", [FLUSHED, COMMITTED])
def test_a_crash_between_change_and_record_leaves_the_retry_to_run(
    shop: Shop, client: Client, point: str
) -> None:
    """PP-01, BL-26, BL-33, BL-50: the worker is killed after the business write and before the record."""
    purchase = Purchase()
    shop.server.arm(point)
    assert client.attempt(shop.server.url, purchase) == LOST
    assert shop.server.died(DEATH_SECONDS_MAX)
    assert shop.ledger.counts(purchase) == (0, 0)
    shop.server.start()
    client.buy(shop.server.url, purchase)
    final = purchase.finals[0]
    assert final is not None
    assert (final.status, final.replayed) == (201, False)
    check(shop.ledger, purchase)


def test_the_other_process_takes_over_at_once(shop: Shop, client: Client) -> None:
    """BL-26, PP-14: nothing has to lapse after a crash; the surviving process runs the retry at once."""
    purchase = Purchase()
    shop.server.arm(COMMITTED)
    assert client.attempt(shop.server.url, purchase) == LOST
    assert shop.server.died(DEATH_SECONDS_MAX)
    client.buy(shop.other.url, purchase)
    shop.server.start()
    check(shop.ledger, purchase)
