import signal

import pytest

from electra.train.signals import Request, Requests


@pytest.mark.parametrize(
    ("number", "request_"),
    [(signal.SIGTERM, Request.STOP), (signal.SIGINT, Request.STOP), (signal.SIGUSR1, Request.SAVE)],
)
def test_signals_are_requests_while_they_are_heard(tmp_path, number, request_):
    requests, before = Requests(tmp_path / "now"), signal.getsignal(number)
    with requests.heard():
        assert requests.look() is Request.NONE
        signal.raise_signal(number)
        assert requests.look() is request_
        assert requests.name == signal.Signals(number).name
    assert signal.getsignal(number) is before


def test_a_save_is_answered_once_and_a_stop_stays(tmp_path):
    requests = Requests(tmp_path / "now")
    with requests.heard():
        signal.raise_signal(signal.SIGUSR1)
        assert [requests.look(), requests.look()] == [Request.SAVE, Request.NONE]
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR1)
        assert [requests.look(), requests.look()] == [Request.STOP, Request.STOP]


def test_the_file_is_a_request_and_is_removed(tmp_path):
    (tmp_path / "now").touch()
    requests = Requests(tmp_path / "now")
    assert [requests.look(), requests.look()] == [Request.SAVE, Request.NONE]
    assert not (tmp_path / "now").exists()


def test_a_second_interrupt_ends_at_once_but_an_echo_of_the_first_does_not(tmp_path, monkeypatch):
    requests = Requests(tmp_path / "now")
    with requests.heard():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr(requests, "_impatient", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
