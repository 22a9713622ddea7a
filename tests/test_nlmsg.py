"""Netlink messages: what the kernel really answers, and answers that are none."""

from __future__ import annotations

import errno
import socket
import struct
from typing import TYPE_CHECKING, Any, Self

import pytest

from smcfast import nlmsg

if TYPE_CHECKING:
    from collections.abc import Iterator

GET_LINK, NEW_LINK = 18, 16
LINKS = bytes(16)


def test_a_dump_has_everything_and_ends() -> None:
    names = [
        nlmsg.text(nlmsg.attributes(each, 16).get(3)) for each in nlmsg.ask(nlmsg.ROUTE, GET_LINK, LINKS, dump=True)
    ]
    assert sorted(names) == sorted(name for _, name in socket.if_nameindex())


def test_one_answer() -> None:
    question = struct.pack("=BxHiII", 0, 0, socket.if_nametoindex("lo"), 0, 0)
    (answer,) = nlmsg.ask(nlmsg.ROUTE, GET_LINK, question)
    assert nlmsg.text(nlmsg.attributes(answer, 16)[3]) == "lo"


def test_a_refusal_has_the_kernels_number() -> None:
    with pytest.raises(OSError, match="No such device") as caught:
        nlmsg.ask(nlmsg.ROUTE, GET_LINK, struct.pack("=BxHiII", 0, 0, 0x7FFFFFF0, 0, 0))
    assert caught.value.errno == errno.ENODEV


def test_answers_one_by_one_need_not_all_be_taken() -> None:
    answers = nlmsg.each(nlmsg.ROUTE, GET_LINK, LINKS)
    assert next(answers)
    answers.close()  # type: ignore[attr-defined]


def test_attributes_come_back_as_they_were_packed() -> None:
    given = {1: b"", 2: b"a", 3: b"abc\0", 0x3FFF: bytes(range(200))}
    assert nlmsg.attributes(b"head" + nlmsg.packed(given), 4) == given
    marked = nlmsg.packed({2 | 0x8000: b"nested", 3 | 0x4000: b"order"})
    assert nlmsg.attributes(marked) == {2: b"nested", 3: b"order"}


def test_the_last_attribute_needs_no_padding() -> None:
    assert nlmsg.attributes(struct.pack("=HH", 5, 1) + b"x") == {1: b"x"}


@pytest.mark.parametrize(
    "data", [struct.pack("=HH", 3, 1), struct.pack("=HH", 9, 1) + bytes(4), struct.pack("=HH", 0, 1)]
)
def test_an_attribute_with_a_wrong_length(data: bytes) -> None:
    with pytest.raises(nlmsg.Malformed):
        nlmsg.attributes(data)


def test_numbers_and_texts() -> None:
    assert nlmsg.number(struct.pack("=H", 0x102)) == 0x102
    assert nlmsg.number(None) == 0
    with pytest.raises(nlmsg.Malformed):
        nlmsg.number(b"abc")
    assert (nlmsg.text(b"eth0\0junk"), nlmsg.text(None), nlmsg.text(b"\xff")) == ("eth0", "", "\udcff")


class Kernel:
    """Stands where the socket is: answers each question with the packets that it was given."""

    def __init__(self, *packets: bytes | tuple[int, bytes]) -> None:
        self._packets = list(packets)
        self.sequence = 0

    def __call__(self, *_: Any) -> Kernel:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def sendto(self, question: bytes, _: Any) -> None:
        self.sequence = struct.unpack_from("=IHHII", question)[3]

    def recvfrom(self, _: int) -> tuple[bytes, tuple[int, int]]:
        packet = self._packets.pop(0)
        sender, packet = packet if isinstance(packet, tuple) else (0, packet)
        return packet.replace(b"SEQU", struct.pack("=I", self.sequence)), (sender, 0)


def message(kind: int, body: bytes, flags: int = 2, length: int | None = None, sequence: bytes = b"SEQU") -> bytes:
    size = 16 + len(body) if length is None else length
    return struct.pack("=IHH", size, kind, flags) + sequence + bytes(4) + body + bytes(-len(body) % 4)


DONE = message(3, bytes(4))


def answered(monkeypatch: pytest.MonkeyPatch, *packets: bytes | tuple[int, bytes]) -> list[bytes]:
    kernel = Kernel(*packets)
    monkeypatch.setattr(nlmsg.socket, "socket", kernel)
    found = nlmsg.ask(nlmsg.ROUTE, GET_LINK, b"", dump=True)
    assert kernel._packets == []
    return found


@pytest.fixture(autouse=True)
def real_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that takes the socket away gives it back before others are torn down."""
    yield
    monkeypatch.undo()


def test_answers_in_several_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    packets = [message(16, b"one") + message(16, b"two"), message(16, b"three"), DONE]
    assert answered(monkeypatch, *packets) == [b"one", b"two", b"three"]


def test_what_others_send_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = (4711, message(16, b"stranger") + DONE)
    stale = message(16, b"stale", sequence=bytes(4)) + message(3, bytes(4), sequence=bytes(4))
    assert answered(monkeypatch, stranger, stale, message(16, b"one"), DONE) == [b"one"]


def test_an_interrupted_dump_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = message(16, b"half", flags=2 | 0x10) + DONE
    assert answered(monkeypatch, interrupted, message(16, b"whole") + DONE) == [b"whole"]
    assert answered(monkeypatch, *[interrupted] * 5) == [b"half"]


@pytest.mark.parametrize("kind", [2, 3])
def test_a_dump_may_end_with_an_error(monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    with pytest.raises(PermissionError):
        answered(monkeypatch, message(16, b"one"), message(kind, struct.pack("=i", -errno.EPERM)))


def test_an_end_without_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered(monkeypatch, message(16, b"one"), message(3, b"")) == [b"one"]


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        bytes(15),
        message(16, b"abcd", length=15),
        message(16, b"abcd", length=21),
        message(3, b"abc"),
        message(2, b""),
    ],
)
def test_a_packet_that_is_none(monkeypatch: pytest.MonkeyPatch, packet: bytes) -> None:
    with pytest.raises(nlmsg.Malformed):
        answered(monkeypatch, packet)
