"""Secrets, symbols, accounts and repositories in free text: what is replaced, what only looks like it, and how long it takes."""

from __future__ import annotations

import time

import pytest

from psmkit.names.paths import PUBLIC_WORDS
from psmkit.names.pseudonyms import Pseudonyms
from psmkit.names.redactor import Marks, Redactor

# Secrets are put together here, so that no scanner for them takes them for real ones.
GITHUB = "ghp_" + "a1B2" * 9
SENDGRID = "SG." + "a1B2c3" * 4 + "." + "Z9y8X7" * 7
AZURE = "Zm9v" * 12 + "Zg=="
SIGNATURE = "abc%2F" + "d1e2" * 8 + "%3D"
PUBLIC = PUBLIC_WORDS | frozenset("signal high is required the deprecated".split())


def scrubbed(*texts: str) -> list[str]:
    names = Pseudonyms(PUBLIC)
    for text in texts:
        names.learn(text)
        names.rewrite(text, Marks(names))
    names.settle()
    once = [names.rewrite(text, Marks(names)) for text in texts]
    again = Pseudonyms(PUBLIC)
    for text in once:
        again.learn(text)
        again.rewrite(text, Marks(again))
    again.settle()
    assert [again.rewrite(text, Marks(again)) for text in once] == once
    return once


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("docker login -u dave -p Passw0rd99", "docker login -u user1 -p token1"),
        ("+ sudo docker --debug login -udave -p 'Pass w0rd' && x", "+ sudo docker --debug login -uuser1 -p 'token1' && x"),
        ('["podman", "login", "-u", "dave", "-p", "Passw0rd99"]', '["podman", "login", "-u", "user1", "-p", "token1"]'),
        ("docker login -u dave -p 123456 | tee -p 77", "docker login -u user1 -p token1 | tee -p 77"),
        ("mysql -psuperSecret1 -P 3306 test", "mysql -ptoken1 -P 3306 test"),
        ("mysqldump -u dave -p test", "mysqldump -u user1 -p test"),
        ("sshpass -p hunter22 ssh -p 22 root@localhost", "sshpass -p token1 ssh -p 22 root@localhost"),
        ("curl -u dave:hunter22 -o out", "curl -u token1 -o out"),
        ("run --token abcdef0123456789abcdef -v", "run --token token1 -v"),
        ("run --password 'a b c' --secret=shh! -v", "run --password 'token1' --secret=token2 -v"),
        ("run --api-key K1 --api-key Key1 --hub-access-key Key2", "run --api-key K1 --api-key token1 --hub-access-key token2"),
        ("['run', '--api_key', 'Key1', '--password=923456']", "['run', '--api_key', 'token2', '--password=token1']"),
        (f"run --token {GITHUB}) and", "run --token token1) and"),
        (f"AccountName=wombats;AccountKey={AZURE};x", "AccountName=name1;AccountKey=token1;x"),
        (f"SharedAccessKeyName=Root;SharedAccessKey={AZURE}", "SharedAccessKeyName=Root;SharedAccessKey=token1"),
        (f"SharedAccessSignature=sv=2022&sig={SIGNATURE}&sr=b", "SharedAccessSignature=sv=2022&sig=token1&sr=b"),
        (f"X-Amz-Signature={'0a' * 32}", "X-Amz-Signature=token1"),
        (f"mail key {SENDGRID}, sent", "mail key token1, sent"),
        ("DB_PASSWORD=123456", "DB_PASSWORD=token1"),
    ],
)  # fmt: skip
def test_a_secret_is_replaced(text: str, new: str) -> None:
    assert scrubbed(text) == [new]


@pytest.mark.parametrize(
    ("text", "new"),
    [
        (r'File "C:\Users\erin\train.py", line 3', r'File "C:\Users\user1\train.py", line 3'),
        (r"C:\\Users\\erin\\wombat\\x.py", r"C:\\Users\\user1\\name1\\x.py"),
        (r"open C:\Users\Erin Smith\data\x.log", r"open C:\Users\user2\data\x.log"),
        (r"open c:\users\erin\x.log C:/Users/erin/x.log", r"open c:\users\user1\x.log C:/Users/user1/x.log"),
        (r"open D:\wombat\data\x.log", r"open D:\name1\data\x.log"),
        (f"https://{GITHUB}@github.com/zebra/wombat.git", "https://token1@github.com/name2/name1.git"),
        ("git clone https://github.com/zebra/wombat.git", "git clone https://github.com/name2/name1.git"),
        ("git@github.com:zebra/wombat.git", "git@github.com:name2/name1.git"),
        ("git@git.zebra.com:zebra/wombat", "git@host1.domain1:name2/name1"),
        ("ssh://git@github.com/zebra/wombat", "ssh://git@github.com/name2/name1"),
        ("pip install git+https://github.com/zebra/wombat", "pip install git+https://github.com/name2/name1"),
        ("user=dave account=zebra partition=wombat-a100", "user=user1 account=name2 partition=name1-a100"),
        ("Account=zebra QOS=wombat Cluster=emu", "Account=name3 QOS=name2 Cluster=name1"),
        ("srun --partition wombat --reservation=zebra_7 --qos emu x", "srun --partition name2 --reservation=name3_7 --qos name1 x"),
        ('SLURM_JOB_PARTITION=wombat {"SLURM_CLUSTER_NAME": "zebra"}', 'SLURM_JOB_PARTITION=name1 {"SLURM_CLUSTER_NAME": "name2"}'),
    ],
)  # fmt: skip
def test_a_user_a_project_or_a_part_of_a_cluster_is_replaced(text: str, new: str) -> None:
    # Numbers count the names of one text.
    got = scrubbed(text)[0]
    for old in ("erin", "Erin", "Smith", "wombat", "zebra", "dave", "emu", GITHUB):
        assert old not in got
    assert _unnumbered(got) == _unnumbered(new)


def _unnumbered(text: str) -> str:
    for word in ("user", "name"):
        for digit in "123":
            text = text.replace(word + digit, word)
    return text


@pytest.mark.parametrize(
    "text",
    [
        "#1 0x7f in __poll (timeout=timeout@entry=0x7ffd, sigmask=sigmask@entry=0x0, arg=arg@entry=0x55) at poll.c:30",
        "f (user=user@entry=0x0, hostname=hostname@entry=0x7f00, password=password@entry=0x7f01, host=host@entry=0)",
        "ibv_create_cq@@IBVERBS_1.1 memcpy@GLIBC_2.2 memcpy@@GLIBC_2.14 x@GLIBC_PRIVATE x@GLIBCXX_3.4 x@OPENSSL_1_1_0",
        "ncclFoo@plt+0x10 fn@plt f@plt.sec libx.so@0x7f12 libnccl.so.2@base cudaMalloc@libcudart.so.12 torch@2.4.0",
        "ssh -p 22 -u x, mkdir -p data, python -u train.py, mysql -p test, docker run -p 8080:80 x",
        "sig=11 sig=SIGSEGV signature=0x7ffd0000000000001234 signal=6 token=17 tokens=123456",
        "--max-token 2048 --pad-token <pad> --token is required, --token $TOKEN --password-stdin --token=17 --secret -v",
        "partition=0 partition=None qos=3 cluster=4 account=0 --partition=0 cluster=zebra qos=wombat",
        "https://github.com/NVIDIA/nccl/issues/1 https://github.com/NVIDIA/nccl.git git@github.com:NVIDIA/nccl.git",
        "transport/net_ib.cc:123 NCCL WARN Net : sig 11 SG.1.2 key 7 login",
        "ssh://git@localhost docker login -u root",
        "https://github.com/zebra/zebra.github.io/issues/1 password=(masked) run --token (masked) ['--secret', '(masked)'] password=***",
    ],
)
def test_what_only_looks_like_a_name_or_a_secret_stays(text: str) -> None:
    assert scrubbed(text) == [text]


def test_a_secret_in_a_url_is_no_user() -> None:
    names = Redactor()
    names.learn(f"https://dave:hunter22@github.com/x {GITHUB}@github.com timeout@entry=0x0")
    assert "user" not in names._names


@pytest.mark.parametrize(
    "part",
    [
        "a@entry=", "x@", "git@h:", "docker login -p ", "docker docker ", "docker,', login", "mysql -p", "sshpass -p ", "curl -u a:",
        "--token ", "--token=", "--token '", '--token "a ', "-" * 9, "token=", "token=a/", "sig=", "AccountKey=", "SG.", "C:\\Users\\a ",
        "https://a@", "git://", "cluster=a ", "partition=", "--qos ", "secret_", "login ",
    ],
)  # fmt: skip
def test_the_time_grows_with_the_length_only(part: str) -> None:
    def seconds(size: int) -> float:
        text, names = (part * size)[:size], Redactor()
        start = time.process_time()
        names.learn(text)
        names.rewrite(text, Marks(names))
        return time.process_time() - start

    seconds(1000)
    assert seconds(160_000) < 40 * max(seconds(20_000), 0.005)
