"""``kill -9`` at every step of a real server, and at random ones under rivals: always one order for each key.

A round: clients send one order with one key at the same moment, the server dies at a chosen point, is
started again, and the clients retry until their answer is final. ``--rounds`` says how many, ``--seed``
repeats their choices.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from threading import Barrier

import pytest

from tests.counted import COUNTED
from tests.process.app import COMMITTED, HALF_SENT, POINTS, UNSENT, Colour
from tests.process.conftest import COLOURS, DATABASES, OpenShop
from tests.process.server import DEATH_SECONDS_MAX
from tests.process.shop import Shop
from tests.process.trial import LOST, Client, Purchase, Seen, Wrong, check, check_totals

RIVALS_MAX = 2
POLL_SECONDS = 0.02
ANY_MOMENT = "a random moment"  # not a point that the server reaches: the test kills it after a random time
ANY_MOMENT_SECONDS_MAX = 0.04  # one order takes about half of this

# Orders and records after the death. The commit is the only boundary: nothing before it, everything after it.
LEFT_BEHIND = {
    "before TryClaim": (0, 0),
    "after TryClaim": (0, 0),
    "handler flushed": (0, 0),
    "handler committed": (0, 0),
    "before Complete": (0, 0),
    "after Complete": (1, 1),
    "answer before its first byte": (1, 1),
    "answer before its body": (1, 1),
}


def test_no_point_is_left_out() -> None:
    assert tuple(LEFT_BEHIND) == POINTS


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_leaves_all_or_nothing_and_the_retry_ends_it(shop: Shop, client: Client, point: str) -> None:
    """PP-01, PP-03, BL-50: order, record and answer are one, whichever step the process dies at."""
    purchase = Purchase()
    shop.server.arm(point)
    lost = client.attempt(shop.server.url, purchase)
    assert lost == (Seen(201, None) if point == HALF_SENT else LOST)
    assert shop.server.died(DEATH_SECONDS_MAX)
    left = shop.ledger.counts(purchase)
    shop.server.start()
    assert left == LEFT_BEHIND[point]
    client.buy(shop.server.url, purchase)
    final = purchase.finals[0]
    assert final is not None
    assert (final.status, final.replayed) == (201, LEFT_BEHIND[point] == (1, 1))
    check(shop.ledger, purchase)


@dataclass(slots=True)
class Tally:
    """What was seen at each point, and in all."""

    kills: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    unreached: Counter[str] = field(default_factory=Counter)
    rivals: int = 0
    retries: int = 0

    def lines(self) -> list[str]:
        return [
            f"  {point}: {self.kills[point]} kills, the order was there after {self.survived[point]}"
            + (f"; not reached in {self.unreached[point]} rounds" if self.unreached[point] else "")
            for point in (*POINTS, ANY_MOMENT)
            if self.kills[point] or self.unreached[point]
        ]


class Rounds:
    """Plays rounds against one shop; a server is started again only when it died."""

    def __init__(
        self, shop: Shop, client: Client, tally: Tally, colours: tuple[Colour, ...] = COLOURS
    ) -> None:
        self._shop = shop
        self._client = client
        self._tally = tally
        self._colours = colours

    def play(self, chance: random.Random) -> Purchase:
        purchase = Purchase()
        point = chance.choice((*POINTS, ANY_MOMENT))
        colour = chance.choice(self._colours)
        rivals = chance.randint(0, RIVALS_MAX)
        # A rival may come in at the other process, which lives on.
        doors = [
            self._shop.server,
            *(chance.choice((self._shop.server, self._shop.other)) for _ in range(rivals)),
        ]
        delay = chance.uniform(0, ANY_MOMENT_SECONDS_MAX)
        starts = self._shop.server.starts
        start = Barrier(len(doors) + 1)
        if point != ANY_MOMENT:
            self._shop.server.arm(point)

        def buy(url: str) -> None:
            start.wait()
            self._client.buy(url, purchase)

        with ThreadPoolExecutor(len(doors)) as pool:
            clients = [pool.submit(buy, door.url) for door in doors]
            start.wait()
            if point == ANY_MOMENT:
                time.sleep(delay)
                self._shop.server.kill()
                self._restart(purchase, point, colour)
            while wait(clients, POLL_SECONDS).not_done:
                if self._shop.server.died(0):
                    self._restart(purchase, point, colour)
        if point != ANY_MOMENT and self._shop.server.disarm(point) and self._shop.server.starts == starts:
            # It died when its clients had their answers already, or at the very last of them.
            assert self._shop.server.died(DEATH_SECONDS_MAX)
            self._restart(purchase, point, colour)
        for future in clients:
            future.result()
        self._tally.unreached[point] += self._shop.server.starts == starts
        self._tally.rivals += rivals
        self._tally.retries += len(purchase.seen) - len(doors)
        return purchase

    def _restart(self, purchase: Purchase, point: str, colour: Colour) -> None:
        orders, records = self._shop.ledger.counts(purchase)
        self._shop.server.start(colour=colour)
        self._tally.kills[point] += 1
        self._tally.survived[point] += orders
        # Two looks are two moments: only a living rival in the other process can commit between them.
        if orders > records:
            raise Wrong(f"killed at {point!r}: {orders} orders and {records} records were left")


@pytest.mark.parametrize(
    "database", [pytest.param(name, marks=pytest.mark.xdist_group(f"kill-{name}")) for name in DATABASES]
)
def test_random_kills_make_one_order_for_each_key(
    *,
    database: str,
    opener: OpenShop,
    client: Client,
    rounds: int,
    seed: int,
    record_property: Callable[[str, object], None],
) -> None:
    shop = opener(database, "sync", "joined")
    tally = Tally()
    player = Rounds(shop, client, tally)
    purchases = []
    for number in range(rounds):
        try:
            purchases.append(player.play(random.Random(f"{seed}:{database}:{number}")))
            check(shop.ledger, purchases[-1])
        except Wrong as wrong:
            pytest.fail(f"round {number} of seed {seed} on {database}: {wrong}")
    check_totals(shop.ledger, purchases)
    orders, _ = shop.ledger.totals()
    summary = (
        f"kill -9: {rounds} rounds on {database}, seed {seed}: {orders} orders for {len(purchases)} keys, "
        f"{tally.kills.total()} kills, {tally.rivals} rivals, {tally.retries} retries"
    )
    record_property(COUNTED, "\n".join([summary, *tally.lines()]))


# Guard the guard: the same kill and the same checker against applications that are wrong ---------------


def test_the_checker_notices_an_order_that_is_not_joined(opener: OpenShop, client: Client) -> None:
    """The order is committed on a connection of its own, and the claim rolls back with the crash.

    PostgreSQL only: on SQLite that second connection would wait for the joined one.
    """
    shop = opener("postgresql", "sync", "unjoined")
    purchase = Purchase()
    shop.server.arm(COMMITTED)
    assert client.attempt(shop.server.url, purchase) == LOST
    assert shop.server.died(DEATH_SECONDS_MAX)
    assert shop.ledger.counts(purchase) == (1, 0)
    shop.server.start()
    client.buy(shop.server.url, purchase)
    with pytest.raises(Wrong, match=r"^2 orders for one key$"):
        check(shop.ledger, purchase)
    with pytest.raises(Wrong, match=r"^1 keys, but 2 orders and records \{'completed': 1\}$"):
        check_totals(shop.ledger, [purchase])


@pytest.mark.parametrize("database", DATABASES)
def test_the_checker_notices_an_application_without_protection(
    database: str, opener: OpenShop, client: Client
) -> None:
    shop = opener(database, "sync", "unprotected")
    purchase = Purchase()
    shop.server.arm(UNSENT)
    assert client.attempt(shop.server.url, purchase) == LOST
    assert shop.server.died(DEATH_SECONDS_MAX)
    shop.server.start()
    client.buy(shop.server.url, purchase)
    with pytest.raises(Wrong, match=r"^2 orders for one key$"):
        check(shop.ledger, purchase)


def test_the_random_rounds_notice_an_order_that_is_not_joined(opener: OpenShop, client: Client) -> None:
    """The very rounds of the proof, against the wrong application: they must not pass."""
    shop = opener("postgresql", "sync", "unjoined")
    player = Rounds(shop, client, Tally(), colours=("sync",))

    def play_all() -> None:
        for number in range(100):
            check(shop.ledger, player.play(random.Random(number)))

    with pytest.raises(Wrong):
        play_all()
