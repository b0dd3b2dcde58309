"""What the probe knows."""

from services.probing import GOOD
from twr.core.drift import Memory, Since
from twr.services.probe import Board, Traffic
from twr.services.probe.board import Window


def test_a_status_before_the_first_look() -> None:
    """What is not known is null, under the same names."""
    assert Board("vps-1").snapshot() == {
        "webhook": {
            "url": None,
            "expected": None,
            "matches": None,
            "pending": None,
            "last_error": None,
            "last_error_at": None,
            "checked_at": None,
        },
        "alerts": [],
    }


def test_a_board_takes_only_what_it_can_read() -> None:
    """Garbled state is none, another instance's is not ours."""
    board = Board("vps-1")
    texts = {
        "webhook_pending": GOOD,
        "webhook_error": "garbled",
        "route_down/shop@vps-1": GOOD,
        "route_down/shop@vps-2": GOOD,
        "probe:memory": "garbled",
        "probe:deaths": "garbled",
        "probe:traffic@vps-2": "garbled",
    }
    board.restore(texts, str, merge=False)
    board.hear(texts)
    assert set(board.shared) == {"webhook_pending"}
    assert set(board.own) == {"route_down/shop"}
    assert board.memory == Memory()
    assert set(board.unsaved()) == {"route_down/shop@vps-1"}
    board.prober = True
    assert board.unsaved()["webhook_error"] is None
    assert "route_down/shop@vps-2" not in board.unsaved()


def test_an_alert_that_is_over_does_not_come_back_from_the_store() -> None:
    """Our own alerts are read once; after that the board knows better."""
    board = Board("vps-1")
    board.restore({"route_down/shop@vps-1": GOOD}, str, merge=False)
    (notice,) = board.step([], [], lambda alert: True, 60.0, 100.0)
    assert (notice.kind, notice.subject, notice.since) == ("resolved", "shop", 5.0)
    board.restore({"route_down/shop@vps-1": GOOD, "webhook_pending": GOOD}, str, merge=False)
    assert board.firing == {"webhook_pending"}
    assert board.unsaved() == {"route_down/shop@vps-1": None}


def test_traffic_counts_from_the_last_time_it_was_asked() -> None:
    """Ours from the start, another instance's from the second time, a fallen total from zero."""
    board = Board("a")
    board.hear({"probe:traffic@b": "[100, 7]"})
    first = board.traffic_since(Traffic(3, 1))
    board.hear({"probe:traffic@b": "[104, 7]"})
    second = board.traffic_since(Traffic(5, 2))
    board.hear({"probe:traffic@b": "[1, 0]"})
    third = board.traffic_since(Traffic(5, 2))
    assert [(it.accepted, it.unauthorized) for it in (first, second, third)] == [
        (3, 1),
        (6, 1),
        (1, 0),
    ]


def test_traffic_counts_from_the_look_of_another_instance() -> None:
    """What was answered before that look was counted with it, here and everywhere."""
    board = Board("a")
    board.hear({"probe:traffic@b": "[100, 7]"})
    board.memory = Memory(checked_at=1000.0)
    board.count_from_look(Traffic(50, 3))
    board.hear({"probe:traffic@b": "[104, 7]"})
    board.count_from_look(Traffic(52, 3))
    assert board.traffic_since(Traffic(53, 4)) == Since(7, 1)


def test_a_window_forgets() -> None:
    """Growth counts for so many seconds, from the first look on."""
    window = Window(300.0)
    assert window.growth(2, 1000.0) == 2
    assert not window.covered(1299.0)
    assert window.growth(5, 1100.0) == 5
    assert window.growth(5, 1299.0) == 5
    assert window.growth(5, 1300.0) == 3
    assert window.covered(1300.0)
    assert window.growth(6, 1400.0) == 1
    assert window.growth(6, 1700.0) == 0
