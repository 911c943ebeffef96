"""Every schedule of rivals on one key, with and without crashes, through the real plans.

``explore`` owns the enumeration: a *schedule* says whose turn it is, step by step, and
who dies where. ``JoinedWorld`` owns what is explored: rivals that live the whole joined
life (begin plan, the handler's business change, finish plan) on one real store, paused
before each step of the core. Neither knows a store's insides.

How it is complete. State is never restored; each schedule is run from its start. A run
follows its given prefix, then always takes the first possible move, and leaves every
other possible move as the prefix of another run: depth first, each schedule exactly
once. Rivals that have not started yet are alike, so only the first of them may start.
A death is a move of its own: whatever the others do between a rival's last step and
its death is covered. A death before the first step is a world with one rival less, and
one after the last step a lost answer; the retry that ends each schedule covers that.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from samekey.core import plans
from samekey.core.decide import Decision, InProgress, Proceed, Replay
from samekey.core.model import Answer, Claim, Completion, Fingerprint, State, record_id
from samekey.core.ops import Commit, Complete, Find, Plan, Step
from samekey.errors import SamekeyError, StoreBusy
from samekey.stores.protocols import Store, Transaction

T = TypeVar("T")

FAILURES_KEPT_MAX = 5  # a broken plan fails in thousands of schedules; the shortest few tell it
COMMITTED = "committed"
DIED = "died"
REPLAYED = "replayed"
FINE = frozenset({COMMITTED, DIED, REPLAYED, "in progress", "store busy"})

Life = Generator[str, None, str]
"""A rival: yields the name of each step before it takes it, returns how it ended."""


class World(Protocol):
    """One fresh set of rivals on one key."""

    def live(self, rival: int) -> Life: ...

    def kill(self, rival: int) -> None:
        """End what the dead rival's process held: its connection breaks."""

    def complaints(self, endings: Sequence[str]) -> list[str]:
        """What is wrong now that everybody has ended; empty when all is well."""
        ...


@dataclass(frozen=True, slots=True)
class Move:
    """One turn: a rival takes its next step, or dies."""

    rival: int
    act: Literal["step", "die"] = "step"


@dataclass(frozen=True, slots=True)
class Report:
    """How many schedules were run, and the stories of those that failed, shortest first."""

    schedules: int
    failed: int
    failures: tuple[str, ...]


def explore(make_world: Callable[[], World], rivals: int, *, crashes: int = 0) -> Report:
    """Run every schedule of ``rivals`` rivals in which at most ``crashes`` of them die."""
    schedules = 0
    stories: list[list[str]] = []
    prefixes: list[tuple[Move, ...]] = [()]
    while prefixes:
        run = _Run(make_world(), rivals, crashes)
        prefix = prefixes.pop()
        for move in prefix:
            run.take(move)
        moves = prefix
        while options := run.options():
            prefixes.extend((*moves, other) for other in options[1:])
            run.take(options[0])
            moves = (*moves, options[0])
        schedules += 1
        complaints = run.world.complaints(run.endings)
        if complaints:
            stories.append([*run.story, *(f"wrong: {complaint}" for complaint in complaints)])
    shortest = sorted(stories, key=len)[:FAILURES_KEPT_MAX]
    return Report(schedules, len(stories), tuple("\n".join(story) for story in shortest))


class _Run:
    """One schedule under way."""

    def __init__(self, world: World, rivals: int, crashes: int) -> None:
        self.world = world
        self.crashes_left = crashes
        self.lives = [world.live(rival) for rival in range(rivals)]
        self.next_steps: list[str | None] = [None] * rivals  # None: not started
        self.endings = [""] * rivals
        self.story: list[str] = []

    def options(self) -> list[Move]:
        moves: list[Move] = []
        for rival, next_step in enumerate(self.next_steps):
            if self.endings[rival]:
                continue
            moves.append(Move(rival))
            if next_step is None:
                break
            if self.crashes_left:
                moves.append(Move(rival, "die"))
        return moves

    def take(self, move: Move) -> None:
        rival, life, name = move.rival, self.lives[move.rival], f"rival {move.rival + 1}"
        if move.act == "die":
            self.crashes_left -= 1
            self.world.kill(rival)
            life.close()
            self.endings[rival] = DIED
            self.story.append(f"{name} dies before: {self.next_steps[rival]}")
            return
        step = self.next_steps[rival] or next(life)
        try:
            self.next_steps[rival] = next(life)
            self.story.append(f"{name}: {step}")
        except StopIteration as stop:
            self.endings[rival] = stop.value
            self.story.append(f"{name}: {step} -> {stop.value}")


# The joined life -------------------------------------------------------------------------

EXPLORED = record_id("explore", "caller", "key")
ANSWER = Answer(201, ((b"location", b"/orders/1"),), b"{}")
RETENTION_SECONDS = 3600.0


class Effects(Protocol):
    """The business change of the handler: one more row, in the joined transaction."""

    def add(self, transaction: Any) -> None: ...

    def committed(self, transaction: Any) -> None:
        """The transaction was committed; a database needs no telling."""

    def count(self) -> int: ...


class JoinedWorld:
    """Rivals with the same request on a sync store, each with the engine's own plans.

    ``begin`` and ``finish`` are the plans under test; a wrong one must be caught.
    """

    def __init__(
        self,
        store: Store,
        effects: Effects,
        *,
        begin: Callable[[Claim], Plan[Decision]] = plans.begin,
        finish: Callable[[Completion], Plan[plans.Committed | plans.EndedEarly]] = plans.finish,
    ) -> None:
        self._store = store
        self._effects = effects
        self._begin = begin
        self._finish = finish
        self._transactions: dict[int, Transaction] = {}

    def live(self, rival: int) -> Life:
        """As an adapter does it: claim, handler, finish; what is refused or fails is rolled back."""
        claim = Claim(
            EXPLORED, rival.to_bytes(16, "big"), Fingerprint(1, b"same"), "caller", "key", "POST", "/orders"
        )
        transaction = self._transactions[rival] = self._store.transaction()
        try:
            return (yield from self._joined(claim, transaction))
        except StoreBusy:
            return "store busy"
        except SamekeyError as error:
            return type(error).__name__
        finally:
            transaction.abandon()

    def _joined(self, claim: Claim, transaction: Transaction) -> Life:
        def perform(step: Step[Any]) -> Any:
            result = transaction.perform(step)
            if isinstance(step, Commit) or (isinstance(step, Complete) and result is not None):
                self._effects.committed(transaction)
            return result

        if self._store.capabilities.single_writer:
            seen = yield from pausing(plans.look(claim), self._store.perform)
            if seen is not None:
                return _ending(seen)
        decision = yield from pausing(self._begin(claim), perform)
        if not isinstance(decision, Proceed):
            return _ending(decision)
        yield "handler"
        self._effects.add(transaction)
        completion = Completion(claim.id, claim.owner, decision.fence, ANSWER, RETENTION_SECONDS)
        result = yield from pausing(self._finish(completion), perform)
        return COMMITTED if isinstance(result, plans.Committed) else "ended early"

    def kill(self, rival: int) -> None:
        self._transactions[rival].abandon(discard=True)

    def complaints(self, endings: Sequence[str]) -> list[str]:
        complaints = [f"somebody got {ending!r}" for ending in endings if ending not in FINE]
        effects = self._effects.count()
        if effects > 1:
            complaints.append(f"the handler's change was committed {effects} times")
        if COMMITTED in endings or REPLAYED in endings:
            record = self._store.perform(Find(EXPLORED))
            if effects == 0:
                complaints.append("an answer was given, but the change is gone")
            if record is None or record.state is not State.COMPLETED or record.answer != ANSWER:
                complaints.append("an answer was given, but the record does not hold it")
        return complaints + self._complaints_of_retry(effects, len(endings))

    def _complaints_of_retry(self, effects_before: int, rival: int) -> list[str]:
        """Whatever happened: one more retry, alone, gets an answer, and the change is there once."""
        ending = _lived(self.live(rival))
        expected = REPLAYED if effects_before else COMMITTED
        complaints = []
        if ending != expected:
            complaints.append(f"with {effects_before} changes committed a retry got {ending!r}")
        if self._effects.count() != max(effects_before, 1):
            complaints.append(f"after a retry the change is there {self._effects.count()} times")
        return complaints


def pausing(plan: Plan[T], perform: Callable[[Step[Any]], Any]) -> Generator[str, None, T]:
    """``run`` with a pause before each step, where it yields the step's name."""
    advance: Callable[[Any], Any] = plan.send
    value: Any = None
    try:
        while True:
            step = advance(value)
            yield type(step).__name__
            try:
                advance, value = plan.send, perform(step)
            except SamekeyError as error:
                advance, value = plan.throw, error
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        plan.close()


def _lived(life: Life) -> str:
    """Live to the end without a pause."""
    try:
        while True:
            next(life)
    except StopIteration as stop:
        ending: str = stop.value
        return ending


def _ending(decision: Decision) -> str:
    if isinstance(decision, Replay):
        return REPLAYED if decision.answer == ANSWER else "another answer"
    if isinstance(decision, InProgress):
        return "in progress"
    return type(decision).__name__


class StagedEffects:
    """Changes for a store without tables: staged per transaction, counted when that commits."""

    def __init__(self) -> None:
        self._staged: dict[Any, int] = {}
        self._count = 0

    def add(self, transaction: Any) -> None:
        self._staged[transaction] = self._staged.get(transaction, 0) + 1

    def committed(self, transaction: Any) -> None:
        self._count += self._staged.pop(transaction, 0)

    def count(self) -> int:
        return self._count
