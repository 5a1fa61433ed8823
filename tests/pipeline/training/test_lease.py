"""The lease of a training: one owner, renewed, expiring by the store's clock."""

from __future__ import annotations

import re
import threading
import time

import pytest

from nmt.config import InputError
from pipeline.training import lease as module
from pipeline.training.bucket import Bucket, StoreError
from pipeline.training.lease import Lease


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewed every 5 s. On a busy machine a lease of few seconds could expire before it is renewed."""
    monkeypatch.setenv("WMT_LEASE_SECONDS", "20")
    monkeypatch.setattr(module, "SETTLE", 0.5)


def test_one_machine_has_it_and_the_next_after_it(bucket: Bucket) -> None:
    first, second = Lease(bucket, "lease.json", "first"), Lease(bucket, "lease.json", "second")
    with first.held():
        with pytest.raises(InputError, match=r"trains this already: wait for its end, or stop it"), second.held():
            pass
        assert not first.lost
        # A copy of the machine, with its folder, has the same owner.
        with pytest.raises(InputError, match="trains this already"), Lease(bucket, "lease.json", "first").held():
            pass
        assert first.confirm()
    with second.held():
        assert bucket.read("lease.json") is not None
    assert bucket.read("lease.json") is None


def test_a_dead_machines_lease_expires(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WMT_LEASE_SECONDS", "4")
    dead = Lease(bucket, "lease.json", "dead")
    dead._acquire()
    began = time.monotonic()
    with Lease(bucket, "lease.json", "next").held():
        # Ages are in whole seconds.
        assert 3 <= time.monotonic() - began < 60
    assert "had this training's lease" in capsys.readouterr().out


def test_a_machine_that_was_killed_gets_its_lease_back_earlier(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once nobody renews it. Who had it before, should it live on, loses it."""
    monkeypatch.setenv("WMT_LEASE_SECONDS", "4")
    killed, again = Lease(bucket, "lease.json", "same"), Lease(bucket, "lease.json", "same")
    killed._acquire()
    with again.held():
        assert re.search(r" ago: waiting [12] s$", capsys.readouterr().out, re.MULTILINE)
        assert again.confirm()
        assert not killed.confirm()
        assert killed.lost


def test_a_store_that_refuses_every_write_ends_with_a_sentence(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease(bucket, "lease.json", "first")
    lease.seconds = 0.1
    monkeypatch.setattr(Bucket, "write", lambda *_, **__: False)
    with pytest.raises(StoreError, match=r"refuses every write of lease\.json"), lease.held():
        pass


ANOTHERS = b'{"owner": "second", "host": "there", "renewals": 1}'


def test_a_machine_that_was_away_learns_that_it_lost_it(bucket: Bucket) -> None:
    lease = Lease(bucket, "lease.json", "first")
    with lease.held():
        assert lease.confirm()
        bucket.write("lease.json", ANOTHERS)
        assert not lease.confirm()
        assert lease.lost, "at once, not when it would have been renewed"
    assert bucket.read("lease.json") is not None, "another's lease was released"


def test_a_lease_that_was_lost_is_not_renewed(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMT_LEASE_SECONDS", "4")
    lease = Lease(bucket, "lease.json", "first")
    with lease.held():
        bucket.write("lease.json", ANOTHERS)
        deadline = time.monotonic() + 60
        while not lease.lost:
            assert time.monotonic() < deadline, "nobody asked who has it"
            time.sleep(0.05)
        assert not lease.confirm()
    found = bucket.read("lease.json")
    assert found is not None
    assert found.content == ANOTHERS


def test_of_two_that_start_at_once_one_has_it(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without conditional writes both own it if one of them is held up for longer than this.
    monkeypatch.setattr(module, "SETTLE", 2.0)
    begun, refused, end = [], [], threading.Event()

    def compete(owner: str) -> None:
        try:
            with Lease(bucket, "lease.json", owner).held():
                begun.append(owner)
                end.wait(60)
        except InputError:
            refused.append(owner)
            end.set()

    threads = [threading.Thread(target=compete, args=(owner,)) for owner in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (len(begun), len(refused)) == (1, 1)


@pytest.mark.parametrize("text", ["0", "1", "-5", "ten", "1.5"])
def test_other_durations_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMT_LEASE_SECONDS", text)
    with pytest.raises(InputError, match=f"^WMT_LEASE_SECONDS is '{text}': it must be a whole number from 2 on"):
        module.seconds()
