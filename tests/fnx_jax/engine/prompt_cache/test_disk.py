"""States in files: there again at the next start, never other than they were, and no reason for a request to fail."""

import contextlib
import errno
import logging
import os
import threading
import time
import weakref

import numpy as np
import pytest

from fnx_jax.engine.fake import FakeSteps
from fnx_jax.engine.limits import EngineConfig
from fnx_jax.engine.loop import Engine
from fnx_jax.engine.prompt_cache import disk, files
from fnx_jax.engine.prompt_cache.away import Away
from fnx_jax.engine.prompt_cache.disk import DiskChoice, DiskTier
from fnx_jax.engine.prompt_cache.files import ForeignFile, StateFileError, most_bytes, read_state, write_state
from fnx_jax.engine.request import Request, SamplingParams
from fnx_jax.engine.rounds import run_round
from fnx_jax.engine.scheduler import Scheduler
from tests.fnx_jax.engine.prompt_cache.test_reuse import GREEDY, cached, serve, tokens

BUDGET = 1 << 20
TICK_S = 0.03
"""Longer than the clock takes by which files are told apart."""


def made(
    folder, slots: int = 4, budget: int = BUDGET, fingerprint: str = "f", host: int = 0, apart: int = 9, **options
):
    """Steps and a scheduler that keep states in a folder."""
    choice = DiskChoice(folder, budget, fingerprint)
    config = EngineConfig(prompt_cache_min_tokens=apart, prompt_cache_host_bytes=host, prompt_cache_disk=choice)
    steps = FakeSteps(slots=slots, **options)
    return steps, Scheduler(steps, config)


def ask(steps, scheduler, seed: int, length: int = 20, name: str = "r") -> int:
    """Sends a prompt, holds the reply against the plain loop's, and returns how many rows were there already."""
    return cached(serve(steps, scheduler, [Request(name, tokens(seed, length), GREEDY)]))[name]


def state_files(folder) -> list:
    return sorted(folder.glob("state-*.safetensors"))


def away(seed: int = 1, size: int = 500) -> Away:
    rng = np.random.default_rng(seed)
    held = rng.standard_normal(size).astype(np.float32), rng.integers(0, 9, (2, 3)).astype(np.uint16)
    return Away(np.arange(seed, seed + 5, dtype=np.int32), "shared", held)


def until_written(tier: DiskTier) -> None:
    while any(stored.writing for stored in tier._oldest_first):
        tier._settle()
        time.sleep(0.001)


def test_a_file_gives_back_what_it_was_given_and_to_its_owner_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK_BYTES", 64)
    state = away()
    write_state(tmp_path / "a", "f", state)
    found = read_state(tmp_path / "a", "f")
    assert found.tokens.tobytes() == state.tokens.tobytes() and found.kind == "shared"
    assert [(a.dtype, a.shape, a.tobytes()) for a in found.held] == [
        (a.dtype, a.shape, a.tobytes()) for a in state.held
    ]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert state.nbytes < (tmp_path / "a").stat().st_size <= most_bytes(state)
    with pytest.raises(ForeignFile, match="made by f, not by g"):
        read_state(tmp_path / "a", "g")


def test_no_byte_of_a_file_may_change_or_be_missing(tmp_path):
    """Byte by byte. Only where a header has spaces may one change, and then it says the same."""
    path, state = tmp_path / "a", away(size=4)
    write_state(path, "f", state)
    whole = path.read_bytes()
    accepted = []
    for at in range(0, len(whole), 2):
        changed = bytearray(whole)
        changed[at] ^= 0x01
        path.write_bytes(changed)
        try:
            found = read_state(path, "f")
        except StateFileError:
            continue
        accepted.append(at)
        assert found.kind == state.kind and found.tokens.tobytes() == state.tokens.tobytes()
        assert [a.tobytes() for a in found.held] == [a.tobytes() for a in state.held]
        assert [(a.dtype, a.shape) for a in found.held] == [(a.dtype, a.shape) for a in state.held]
    assert {whole[at : at + 1] for at in accepted} <= {b" "}
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(StateFileError):
            read_state(path, "f")


def test_states_that_leave_the_devices_come_back_from_files(tmp_path):
    steps, scheduler = made(tmp_path, slots=1)
    hits = [ask(steps, scheduler, seed, length) for seed, length in [(1, 20), (2, 30), (1, 20), (2, 30), (1, 20)]]
    assert hits == [0, 0, 19, 29, 19]
    scheduler.close(orderly=True)
    status = scheduler.status().cache
    assert (status.disk.kept, status.disk.written, status.disk.lost, status.failed) == (2, 2, 0, 0)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= status.disk.nbytes <= BUDGET


def test_files_come_after_the_hosts_memory(tmp_path):
    steps, scheduler = made(tmp_path, slots=1, host=2000)
    assert [ask(steps, scheduler, seed) for seed in (1, 2, 3)] == [0, 0, 0]
    status = scheduler.status().cache
    assert (status.kept, status.away, status.disk.kept) == (1, 1, 1)
    assert [ask(steps, scheduler, seed) for seed in (1, 2, 3)] == [19, 19, 19]
    scheduler.close(orderly=True)
    assert len(state_files(tmp_path)) == 3


def test_the_next_start_finds_what_an_orderly_end_left(tmp_path):
    folder = tmp_path / "new" / "states"
    steps, scheduler = made(folder)
    ask(steps, scheduler, 1)
    ask(steps, scheduler, 2)
    assert not state_files(folder)
    scheduler.close(orderly=True)
    assert len(state_files(folder)) == 2 and folder.stat().st_mode & 0o777 == 0o700
    steps, scheduler = made(folder)
    assert [ask(steps, scheduler, seed) for seed in (1, 2, 3)] == [19, 19, 0]
    scheduler.close(orderly=True)
    assert len(state_files(folder)) == 3 and scheduler.status().cache.disk.written == 1


def test_an_engine_that_failed_writes_nothing_more(tmp_path):
    steps, scheduler = made(tmp_path)
    ask(steps, scheduler, 1)
    scheduler.close(orderly=False)
    assert not state_files(tmp_path)
    steps, scheduler = made(tmp_path)
    ask(steps, scheduler, 1)
    steps.owner = None  # whoever used the pages meanwhile
    scheduler.close(orderly=True)
    assert not state_files(tmp_path)


@pytest.mark.parametrize("threaded", [False, True])
def test_an_engine_that_is_stopped_leaves_its_states(tmp_path, threaded):
    config = EngineConfig(prompt_cache_min_tokens=1, prompt_cache_disk=DiskChoice(tmp_path, BUDGET, "f"))
    request = Request("a", tokens(1, 20), GREEDY)
    engine = Engine(FakeSteps(slots=2), config)
    if threaded:
        engine.start()
    first = engine.run([request])["a"]
    engine.stop()
    engine.stop()
    assert engine.status().cache.disk.written
    again = Engine(FakeSteps(slots=2), config)
    second = again.run([request])["a"]
    again.stop()
    assert [e.tokens for e in first] == [e.tokens for e in second] and second[-1].cached_tokens == 19


def harmed(path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "flipped":
        content[-5] ^= 0x10
    path.write_bytes(content[: len(content) // 2] if how == "cut" else content)
    if how == "gone":
        path.unlink()


@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_files_that_are_not_as_they_were_cost_reuse_and_one_warning(tmp_path, how, when, caplog):
    steps, scheduler = made(tmp_path)
    for seed in (1, 2, 3):
        ask(steps, scheduler, seed)
    scheduler.close(orderly=True)
    paths = state_files(tmp_path)
    if when == "after":
        steps, scheduler = made(tmp_path)
    for path in paths:
        harmed(path, how)
    with caplog.at_level(logging.WARNING):
        if when == "before":
            steps, scheduler = made(tmp_path)
        assert [ask(steps, scheduler, seed) for seed in (1, 2, 3)] == [0, 0, 0]
    assert len(caplog.records) == (0 if (how, when) == ("gone", "before") else 1)
    assert [ask(steps, scheduler, seed) for seed in (1, 2, 3)] == [19, 19, 19]
    scheduler.close(orderly=True)


def test_a_file_that_could_not_be_read_for_want_of_memory_stays(tmp_path, monkeypatch):
    steps, scheduler = made(tmp_path)
    ask(steps, scheduler, 1)
    scheduler.close(orderly=True)
    (path,) = state_files(tmp_path)
    steps, scheduler = made(tmp_path)

    def fail(path, fingerprint):
        raise MemoryError("no room")

    monkeypatch.setattr(disk, "read_state", fail)
    ask(steps, scheduler, 1)
    scheduler.close(orderly=False)
    assert path.exists()


def test_files_of_others_are_left_alone_with_one_warning_a_kind(tmp_path, caplog):
    steps, scheduler = made(tmp_path, fingerprint="other")
    for seed in (1, 2):
        ask(steps, scheduler, seed)
    scheduler.close(orderly=True)
    (tmp_path / "notes.txt").write_text("nothing of ours")
    (tmp_path / ".state-1.safetensors.ab.unfinished").write_text("being written")
    (tmp_path / ".state-2.safetensors.cd.unfinished").write_text("left by a process that died")
    os.utime(tmp_path / ".state-2.safetensors.cd.unfinished", (1, 1))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if "cd.unfinished" not in path.name}
    with caplog.at_level(logging.WARNING):
        steps, scheduler = made(tmp_path, budget=2000)
        assert [ask(steps, scheduler, seed) for seed in (1, 2)] == [0, 0]
    says = sorted(record.getMessage() for record in caplog.records)
    assert (
        len(says) == 2 and "1 files are no kept states" in says[0] and "2 files are kept states of another" in says[1]
    )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    scheduler.close(orderly=False)


def test_the_longest_unused_file_goes_first_also_after_a_start(tmp_path):
    room = 3 * most_bytes(away(size=5000))
    tier = DiskTier(DiskChoice(tmp_path, room, "f"))
    for seed in (1, 20, 40):
        tier.add(away(seed, size=5000))
        until_written(tier)
        time.sleep(TICK_S)
    tier.touch(tier.find(away(1).tokens))
    tier.close()
    time.sleep(TICK_S)
    room = sum(path.stat().st_size for path in state_files(tmp_path)) + 6000
    tier = DiskTier(DiskChoice(tmp_path, room, "f"))
    tier.add(away(60, size=5000))
    assert [tier.find(away(seed).tokens) is not None for seed in (1, 20, 40, 60)] == [True, False, True, True]
    tier.close()
    assert len(state_files(tmp_path)) == 3 and tier.status().nbytes <= room
    tier = DiskTier(DiskChoice(tmp_path, most_bytes(away(size=5000)), "f"))
    tier.close()
    assert len(state_files(tmp_path)) == 1 and tier.find(away(60).tokens) is not None


def test_a_full_disk_loses_reuse_with_one_warning_until_it_takes_files_again(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    steps, scheduler = made(tmp_path, slots=1)
    with caplog.at_level(logging.WARNING), monkeypatch.context() as patched:
        patched.setattr(disk, "write_state", full)
        for seed in (1, 2, 3, 4):
            ask(steps, scheduler, seed)
            until_written(scheduler._reuse.tiers.disk)
    assert len(caplog.records) == 1 and "No space left" in caplog.text
    assert [ask(steps, scheduler, seed) for seed in (1, 4, 1)] == [0, 19, 19]
    scheduler.close(orderly=True)
    assert len(state_files(tmp_path)) == 2


def test_two_processes_in_one_folder_lose_nothing_but_reuse(tmp_path, caplog):
    (one, first), (two, second) = made(tmp_path, slots=1, budget=16000), made(tmp_path, slots=1, budget=16000)
    for turn in range(2):
        for seed in (1, 2, 3):
            ask(one, first, seed)
            ask(two, second, seed if turn else seed + 1)
    assert not caplog.records
    until_written(first._reuse.tiers.disk)
    until_written(second._reuse.tiers.disk)
    _, third = made(tmp_path, budget=100)  # which lets all files go that the others know
    third.close(orderly=True)
    assert not state_files(tmp_path)
    for seed in (2, 1, 3, 4):
        ask(one, first, seed)
        ask(two, second, seed)
    assert len(caplog.records) == 2 and all("No such file" in record.getMessage() for record in caplog.records)
    first.close(orderly=True)
    second.close(orderly=True)
    steps, scheduler = made(tmp_path)
    assert 19 in [ask(steps, scheduler, seed) for seed in (1, 2, 3, 4)]
    scheduler.close(orderly=True)


def test_running_replies_do_not_wait_for_a_file(tmp_path, monkeypatch):
    steps, scheduler = made(tmp_path)
    ask(steps, scheduler, 1)
    scheduler.close(orderly=True)
    go, read = threading.Event(), disk.read_state
    monkeypatch.setattr(disk, "read_state", lambda *of: (go.wait(20), read(*of))[1])
    steps, scheduler = made(tmp_path)
    scheduler.submit(Request("running", tokens(7, 5), SamplingParams(temperature=0.0, max_tokens=60)))
    list(run_round(steps, scheduler))
    scheduler.submit(Request("resumed", tokens(1, 20), GREEDY))
    for _ in range(10):
        assert [emission.request_id for emission in run_round(steps, scheduler)] == ["running"]
    assert scheduler.queued() == ["resumed"]
    go.set()
    emissions = []
    while scheduler.has_work():
        emissions += list(run_round(steps, scheduler))
    assert [e.cached_tokens for e in emissions if e.request_id == "resumed" and e.finish] == [19]
    scheduler.close(orderly=True)


def test_states_beyond_what_may_wait_to_be_written_are_lost_unless_there_is_time(tmp_path, monkeypatch):
    go, write = threading.Event(), disk.write_state
    monkeypatch.setattr(disk, "write_state", lambda *of: (go.wait(20), write(*of)))
    monkeypatch.setattr(disk, "QUEUE_BYTES", 2 * away().nbytes)
    tier = DiskTier(DiskChoice(tmp_path, BUDGET, "f"))
    for seed in (1, 20, 40):
        tier.add(away(seed))
    assert [tier.find(away(seed).tokens) is not None for seed in (1, 20, 40)] == [True, True, False]
    assert tier.status().lost == 1
    waiting = tier.find(away(20).tokens)
    assert tier.read(waiting, patient=False) is waiting.away  # it need not be in its file yet
    threading.Timer(0.05, go.set).start()
    tier.add(away(60), patient=True)
    tier.close()
    assert tier.status().written == 3 and len(state_files(tmp_path)) == 3


def test_states_let_go_while_they_wait_to_be_written_are_neither_written_nor_held(tmp_path, monkeypatch):
    begun, go, write, written = threading.Event(), threading.Event(), disk.write_state, []

    def slow(path, *of):
        begun.set()
        go.wait(20)
        written.append(path)
        write(path, *of)

    monkeypatch.setattr(disk, "write_state", slow)
    tier = DiskTier(DiskChoice(tmp_path, most_bytes(away()), "f"))
    tier.add(away(1))
    assert begun.wait(20)
    state = away(20)
    waiting = weakref.ref(state)
    tier.add(state)
    del state
    assert waiting() is not None
    tier.add(away(40))
    assert waiting() is None
    go.set()
    tier.close()
    assert len(written) == 2 and [path for path in written if path.exists()] == state_files(tmp_path) != []


def test_what_is_larger_than_the_budget_is_not_taken(tmp_path):
    tier = DiskTier(DiskChoice(tmp_path, 100, "f"))
    tier.add(away())
    tier.close()
    assert not len(tier) and tier.status().lost == 1 and not state_files(tmp_path)


def test_a_folder_that_cannot_be_made_is_an_error_of_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError), contextlib.closing(DiskTier(DiskChoice(tmp_path / "file" / "in", BUDGET, "f"))):
        pass
