"""What became of each update: whether it died as its reason says, and whether it took too long."""

from collections.abc import Iterator

from bench.crashing.record import Case, Dead, Sent, Span, length

# So much of its life has to have been disturbed for what lives short to expire.
DISTURBED = 0.5
# A job is poison after so many crashes; that one is in flight in all of them by chance is rare,
# and more than one in so many kills would be those that were merely beside.
POISON = 3
KILLS_A_POISON = 20


def unexplained_deaths(case: Case) -> Iterator[str]:
    """A line for each dead letter for which the record has no cause."""
    times = Times(case)
    for it in case.record.dead:
        if not _deserved(case, times, it):
            yield f"{it.update_id}/{it.route}: {it.reason}"
    poison = sum(it.reason == "poison" for it in case.record.dead)
    kills = sum(it.killed is not None for it in case.record.processes)
    if poison > max(1, kills // KILLS_A_POISON):
        yield f"{poison} died as poison in {kills} kills"


def _deserved(case: Case, times: "Times", dead: Dead) -> bool:
    update = case.sent.get(dead.update_id)
    if update is None:
        return False
    match dead.reason:
        case "attempts":
            made = _burned(case, dead)
            return dead.route in update.refused and made >= case.rules.max_attempts
        case "permanent":
            requests = case.requests.get((dead.update_id, dead.route), ())
            return any(it.status == 400 for it in requests)
        case "expired":
            return _expired(times, update, dead)
        case "poison":
            return dead.crashes == POISON and _crashes(case, update, dead) >= POISON
    return False


def _burned(case: Case, dead: Dead) -> int:
    """Attempts that failed while their process lived: a crash burns none."""
    ends = (
        (it.ended, case.processes[it.process].killed)
        for it in case.requests.get((dead.update_id, dead.route), ())
        if not it.delivered
    )
    return sum(end is not None and (killed is None or end <= killed) for end, killed in ends)


def _expired(times: "Times", update: Sent, dead: Dead) -> bool:
    lived = dead.died - update.sent
    quiet = times.quiet(dead.route, (update.sent, dead.died))
    return lived >= update.expires_after - 0.1 and quiet <= (1 - DISTURBED) * lived


def _crashes(case: Case, update: Sent, dead: Dead) -> int:
    """Processes that crashed in its life, or were stopped so long that they were taken for dead:
    each but the last may have held it unseen."""
    found = set()
    for it in case.record.processes:
        if it.killed is not None and update.sent <= it.killed <= dead.died:
            found.add(it.number)
        for start, end in it.stops:
            if update.sent <= start <= dead.died and end - start >= case.rules.lapsed:
                found.add(it.number)
    return len(found)


# --- time -------------------------------------------------------------------------------------


def late(case: Case) -> Iterator[str]:
    """A line for each update that took too long on a route; what was sent when all was well has to
    be prompt there."""
    times = Times(case)
    for update in case.record.sent:
        for route in update.routes:
            done = case.done((update.update_id, route))
            if update.acknowledged is None or done is None:
                continue
            name, took = f"{update.update_id}/{route}", done - update.sent
            quiet = times.quiet(route, (update.sent, done))
            if update.calm and took > case.rules.prompt:
                yield f"{name}: {took:.1f} s though all was well"
            elif quiet > case.rules.late:
                yield f"{name}: {quiet:.1f} s without a disturbance"


class Times:
    """When something was wrong that can hold up a delivery."""

    def __init__(self, case: Case) -> None:
        rules, record = case.rules, case.record
        found = [(start, end + rules.back) for start, end in record.outages]
        for it in record.processes:
            if it.killed is not None:
                found.append((it.killed, it.killed + rules.taken_over))
            found += [(start, max(end, start + rules.taken_over)) for start, end in it.stops]
        hung = [(start, end + rules.resumed) for start, end in record.hangs]
        self._hanging = rules.hanging
        self._everywhere = _joined(found)
        self._where_it_hangs = _joined([*found, *hung])

    def quiet(self, route: str, window: Span) -> float:
        """How much of the window nothing was wrong, seconds."""
        wrong = self._where_it_hangs if route in self._hanging else self._everywhere
        return window[1] - window[0] - length(wrong, window)


def _joined(spans: list[Span]) -> list[Span]:
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined
