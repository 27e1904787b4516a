"""Host side: which rank this process is, and where rank 0 listens. Read next: handshake.py."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Group:
    """One process's place among the ranks, and how long it waits for the others.

    host, port: where rank 0 listens. ranks: processes; rank: this one, from 0. token: shared secret; another one is
    refused. join_s: how long the others may take to appear.
    beat_s: a sign of life is sent that often. silence_s: a rank that is not heard for so long while all serve is lost;
    start_silence_s: the same before, while compilers hold up everything else.
    """

    host: str
    port: int
    ranks: int
    rank: int
    token: bytes = field(default=b"", repr=False)
    join_s: float = 300.0
    beat_s: float = 0.5
    silence_s: float = 3.4
    start_silence_s: float = 60.0

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise ValueError(f"ranks={self.ranks}: at least 2 were wanted beside a coordinator")
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank={self.rank}: from 0 to {self.ranks - 1} was wanted")


def parse_address(text: str) -> tuple[str, int]:
    """Splits HOST:PORT or [HOST]:PORT. Raises ValueError for anything else."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not port.isdecimal() or not 0 < int(port) < 65536 or (":" in bare and bare == host):
        raise ValueError(f"{text!r}: HOST:PORT was wanted, [HOST]:PORT for IPv6")
    return bare, int(port)


def spell_address(host: str, port: int) -> str:
    """HOST:PORT, with brackets around IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
