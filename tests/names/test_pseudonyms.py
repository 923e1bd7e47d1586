"""Pseudonyms: one for a name, in the order of the names, of the same form, and the same when they are scrubbed again."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psmkit.names.pseudonyms import Pseudonyms, is_pseudonym, natural

HOSTS = st.from_regex(r"[a-z]{2,8}-?[0-9]{1,3}", fullmatch=True)
PIDS = st.integers(1, 4_000_000).map(str)
FOURS = (
    st.integers(1 << 24, (224 << 24) - 1)
    .map(lambda n: str(ipaddress.IPv4Address(n)))
    .filter(lambda a: not a.startswith("127."))
)
SIXES = st.integers(1 << 100, (1 << 128) - 1).map(lambda n: str(ipaddress.IPv6Address(n)))


def settled(kind: str, names: list[str]) -> dict[str, str]:
    pseudonyms = Pseudonyms()
    for name in names:
        pseudonyms.place(kind, name)
    pseudonyms.settle()
    return {name: pseudonyms.place(kind, name) for name in names}


@pytest.mark.parametrize("kind", ["host", "pid", "ip", "ip6"])
@given(data=st.data())
def test_each_name_has_its_own_pseudonym_in_the_same_order_and_it_stays(kind: str, data: st.DataObject) -> None:
    names = data.draw(st.lists({"host": HOSTS, "pid": PIDS, "ip": FOURS, "ip6": SIXES}[kind], unique=True, min_size=1))
    new = settled(kind[:2] if kind == "ip6" else kind, names)
    assert len(set(new.values())) == len(names)
    again = settled(kind[:2] if kind == "ip6" else kind, list(new.values()))
    assert all(old == stays for old, stays in again.items())
    if kind == "pid":
        assert [new[name] for name in sorted(names, key=int)] == sorted(new.values(), key=int)
        assert all(len(name) == len(pid) for name, pid in new.items())
    elif kind == "host":
        plain = [name for name in names if not is_pseudonym("host", name)]
        numbers = [int(new[name].strip("host-")) for name in sorted(plain, key=natural)]
        assert numbers == sorted(numbers)
    elif kind == "ip":
        order = [
            int(ipaddress.ip_address(new[name])) for name in sorted(names, key=lambda a: int(ipaddress.ip_address(a)))
        ]
        assert order == sorted(order)
        nets: dict[str, str] = {}
        for name in names:
            assert (
                nets.setdefault(name.rpartition(".")[0], new[name].rpartition(".")[0]) == new[name].rpartition(".")[0]
            )


@pytest.mark.parametrize(
    ("kind", "name", "form"),
    [
        ("mac", "04:3f:72:aa:bb:cc", "02:00:00:00:00:01"),
        ("guid", "0x506b4b0300c9f2d1", "0x0200000000000001"),
        ("guid", "506b:4b03:00c9:f2d1", "0200:0000:0000:0001"),
        ("uuid", "6d4d7a2e-1f0c-4c5f-9d6b-0f1e2d3c4b5a", "00000000-0000-4000-8000-000000000001"),
        ("cloud", "i-0abc12345def67890", "i-00000000000000001"),
        ("account", "123456789012", "000000000001"),
        ("ip", "fe80::a6bf:1ff:fe3b:1234%eth0", "fe80::1%eth0"),
        ("ip", "::ffff:10.1.2.3", "::ffff:198.18.0.1"),
        ("ip", "fe80:0000:0000:0000:506b:4b03:00c9:f2d1", "fe80:0000:0000:0000:0000:0000:0000:0001"),
    ],
)
def test_the_form_stays(kind: str, name: str, form: str) -> None:
    assert settled(kind, [name]) == {name: form}
    assert is_pseudonym(kind, form)
    assert not is_pseudonym(kind, name)


def test_a_name_that_comes_late_gets_a_pseudonym_that_is_free() -> None:
    names = Pseudonyms()
    for kind, name in (("host", "gpu1"), ("pid", "31000"), ("ip", "10.0.0.1")):
        names.place(kind, name)
    names.settle()
    assert names.place("host", "gpu0") == "host2"
    assert names.place("pid", "30000") == "10001"
    assert names.place("ip", "10.0.0.0") == "198.18.0.2"
    assert names.place("host", "gpu0") == "host2"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"worker-0": 9, "ker-0": 1}, {"worker-0": "host-1", "ker-0": "t-1"}),  # a log begins within a name
        ({"vm": 9, "m": 1, "^m": 1}, {"vm": "host1", "m": "ost1", "^m": "^ost1"}),  # flipped bytes
        ({"vm": 9, "m": 1, "doneCvm": 1}, {"vm": "host1", "m": "ost1", "doneCvm": "doneChost1"}),
        ({"gpu7": 9, "1048576.gpu7": 1}, {"1048576.gpu7": "1048576.host1"}),
        ({"gpu7": 9, "nvs4.xmlgpu7": 1}, {"nvs4.xmlgpu7": "name1.xmlhost1"}),
        ({"gpu7": 9, "0x7f328c009cc0gpu7": 1}, {"0x7f328c009cc0gpu7": "0x7f328c009cc0host1"}),
        (
            {"gpu7": 9, "netaxgpu7": 1, "acmegpu7": 1},
            {"netaxgpu7": "name1host1", "acmegpu7": "name2host1"},
        ),  # net is a word
        ({"worker-0": 9, "pod-worker-0": 9}, {"worker-0": "host-1", "pod-worker-0": "pod-host-1"}),
        ({"gpu7": 9, "gpH7": 1}, {"gpu7": "host2", "gpH7": "host1"}),  # another host: no name ends with the other
    ],
)
def test_a_host_whose_name_ends_with_another_one_of_its_pid_keeps_this_relation(
    names: dict[str, int], expected: dict[str, str]
) -> None:
    from psmkit.names.paths import PUBLIC_WORDS

    pseudonyms = Pseudonyms(PUBLIC_WORDS | {"done"})
    for name, times in names.items():
        lead, host = pseudonyms.lead(name)
        assert lead in ("", "^")
        pseudonyms.process(host, "4711")
        pseudonyms.seen[host] += times
    pseudonyms.settle()
    found = {name: pseudonyms.lead(name) for name in expected}
    assert {name: lead + pseudonyms.host(host) for name, (lead, host) in found.items()} == expected


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("/home/alice/acme/train_llama.py", "/home/user1/name1/train_name2.py"),
        ("/usr/lib/python3.10/site-packages/torch/distributed/c10d_logger.py", None),
        ("/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14", None),
        ("/build/acme/src/transport/net_ib.cc", "/build/name1/src/transport/net_ib.cc"),
        ("nccl.gpu7.4242.log", "nccl.host1.1000.log"),
        ("/proc/4242/maps", "/proc/1000/maps"),
        ("/dev/nvidia0", None),
    ],
)
def test_the_words_of_a_path(path: str, new: str | None) -> None:
    from psmkit.names.paths import PUBLIC_WORDS

    names = Pseudonyms(PUBLIC_WORDS)
    names.process("gpu7", "4242")
    for _ in range(2):
        names.path(path)
        result = names.path(path)
        if not names.settled:
            names.settle()
    assert names.path(path) == (path if new is None else new)
    assert result
