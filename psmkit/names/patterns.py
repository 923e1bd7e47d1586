"""What names of people and machines, and secrets, look like in a text that no message of the catalogue describes."""

from __future__ import annotations

import ipaddress
import re

__all__ = ["Pattern", "is_address", "is_version", "label"]

Pattern = re.Pattern[str]

#: Colours of a terminal, as they are and as editors and JSON write them.
COLOUR = re.compile(
    r"(?:\x1b|\\(?:x1b|u001b|033|e)|\^\[|#x1B|\u241b)\[[0-9;]{0,12}[mKGH]|\[[0-9;]{1,12}[mKGH]", re.IGNORECASE
)
# Each pattern that begins with a run of characters begins where the run does. Otherwise a line without a match would be searched again from
# each place in the run.
_START = r"(?<![\w.-])"
#: host:pid:tid [dev] NCCL, after any prefix that a launcher adds.
_EDGE = r"\s:\[\]()<>\"'=/|,;{}\u0080-\U0010ffff"
PREFIX = re.compile(
    rf"(?<![^{_EDGE}])(?!\d\d:\d\d:\d\d\b)(?P<host>[^{_EDGE}]+):(?P<pid>\d+):(?P<tid>\d+)(?= (?:\[|NCCL))"
)
#: ``host :pid:tid``, as people leave it when they replace the name of a host, and ``:pid:tid`` without one.
LOOSE_PREFIX = re.compile(
    r"(?:(?<![^\s>\]])(?P<host>[A-Za-z][\w.-]*|<[^<>\s]+>)(?P<blank> +)|(?<![^\s>\]]))(?P<ids>:(?P<pid>\d+):(?P<tid>\d+))(?= (?:\[|NCCL))"
)
PAIR = re.compile(_START + r"[\d.-]*(?P<host>[A-Za-z][\w.-]*):(?P<pid>\d+)\b")
NAMED = re.compile(rf"(?P<head>\bprocess ){_START}(?P<lead>[\d.-]*)(?P<host>[A-Za-z][\w.-]*):(?P<pid>\d+)\b")
#: A process or a thread; only those that were recorded are replaced.
PROCESS = re.compile(r"(?<![\w./-])(?P<host>[\w.-]+|<[\w.-]+>):(?P<pid>\d+)(?::(?P<tid>\d+))?(?!\w|\.\d)")
PID_WORD = re.compile(
    r"(?i)(?P<head>\b(?:pid|tid|process|proc|thread)(?: id)?[ =:#]{1,3}|/proc/|(?<![\w.-])[\d.-]*[A-Za-z][\w.-]*\[)(?P<pid>\d+)(?=\b)"
)
USER = re.compile(
    r"(?i)(?P<head>/(?:home|Users)/|\\Users\\{1,4}|\b(?:user(?:name)?|logname|login|owner)[ =:]{1,2}[\"']?)(?P<user>[A-Za-z_][\w.-]*)"
)
#: What debuggers say of an argument: its value where the function begins.
ENTRY = re.compile(r"(?<![\w.-])[A-Za-z_]\w*@entry(?![\w-]|\.\w)")
#: The version of a symbol, and where it is looked up.
SYMBOL = re.compile(
    r"(?:plt|got|gotplt)(?:\.(?:sec|got))?(?![\w.-])|(?:GLIBC|GLIBCXX|CXXABI|GCC)_|[A-Z][A-Z0-9]*_\d+[._]\d|lib[\w.+-]*\.so\b"
)
LIBRARY = re.compile(r"lib[\w.+-]*\.so[\d.]*$")
USER_AT = re.compile(_START + r"(?P<head>[\d.-]*)(?P<user>[A-Za-z_][\w.+-]*)@(?P<host>[A-Za-z0-9][\w.-]*)")
ADDRESS_HOST = re.compile(_START + r"(?P<head>[\d.-]*)(?P<host>[A-Za-z][\w.-]*)(?=<\d+>)")
#: A place in a cluster, as sockets and options name it. A list of Slurm's may name many in one word.
BRACKET_HOST = re.compile(r"(?P<head>\[)(?P<host>[A-Za-z][\w.-]*)(?=\]:\d)")
HOST_OPTION = re.compile(
    r"(?P<head>(?<![\w-])(?:--?hosts?|-H|--nodelist|-w|--rdzv[-_]endpoint|--master[-_]addr)[ =]+)(?P<hosts>[A-Za-z0-9][^\s\"'\ud800\ud801]*)"
)
HOST_SETTING = re.compile(
    r"(?i)(?P<head>(?<![A-Za-z0-9])(?:\w{0,40}(?:master_addr|hostname|nodename|nodelist|job_nodelist)|hosts?|\w{1,40}_hosts?)(?:=|: ?)[\"']?)"
    r"(?P<host>[A-Za-z][\w.-]*(?:\[[\d,-]+\])?)(?!\w*:/)"
)
IPV4 = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.]*\d)")
IPV6 = re.compile(r"(?<![\w:.])(?=[0-9A-Fa-f]*+:)[0-9A-Fa-f:.]++(?:%[\w.-]++)?(?!\w)")
MAC = re.compile(r"\b[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5,}\b")
NAME = re.compile(r"(?<![A-Za-z0-9.-])[.-]*(?P<name>[A-Za-z0-9][A-Za-z0-9.-]*)")
DOMAINS = frozenset("com net org edu gov io ai cloud local localdomain internal lan corp svc cluster".split())
#: A path does not begin in the middle of a word or path. Kernel and device files identify nobody.
PATH = re.compile(r"(?<![\w/.:>])~?/(?!/)[^\s\"'`,;:<>()\[\]{}|=\ud800\ud801]+")
#: A path of Windows; the name of a user may have blanks.
DRIVE_PATH = re.compile(
    r"(?<![\w.])[A-Z]:\\{1,4}(?:Users\\{1,4}[\w.-]+(?: [\w.-]+){1,3}(?=\\))?[^\s\"'`,;:<>()\[\]{}|=*?/\ud800\ud801]*"
)
#: An organisation and a repository, as git names them to a server by ssh.
GIT = re.compile(
    r"(?<![\w.+-])(?P<user>[\w.+-]+)@(?P<host>[A-Za-z0-9][\w.-]*):(?P<path>(?!\d+(?![\w./-]))[\w.~/][\w./~+-]*)"
)
#: What Slurm calls a part of a cluster or those who pay for it: in an option, a variable, or beside other such words.
SLURM = re.compile(
    r"(?i)(?P<head>(?<![\w-])(?:--(?:partition|reservation|qos|account|clusters?)(?:[ =]+|[\"'], ?)"
    r"|(?:SLURM|SBATCH|SALLOC|SRUN)_(?:JOB_)?(?:PARTITION|RESERVATION|QOS|ACCOUNT|CLUSTERS?|CLUSTER_NAME)(?:=|[\"'] ?: ?)"
    r"|(?P<bare>partition|reservation|qos|account|cluster)(?:=|[\"'] ?: ?))[\"']?)"
    r"(?P<name>(?!\d+(?![\w-])|0x|(?:None|null|true|false)(?![\w-]))[\w][\w.,+-]*)"
)
#: What makes such a word one of Slurm's.
OF_SLURM = re.compile(
    r"(?i)slurm|sbatch|srun|(?<![\w-])(?:user(?:_?id|_?name)?|account|partition)(?:=|[\"'] ?: ?)[\"']?(?!(?:none|null|true|false)\b)[a-z_]"
)
PUBLIC = re.compile(r"^/(?:dev|sys|proc)(?:/|$)|^/(?:home|Users)/?$")
#: A word in which a name may stand, with the labels of a domain behind it.
WORD = re.compile(r"(?<![\w.\ud800-])[\w-]+(?:\.[\w-]+)*")

#: The place that a URL names, without the path behind it.
URL = re.compile(
    r"(?P<head>\b(?P<scheme>[A-Za-z][A-Za-z0-9+-]{0,20})://(?:(?:git|\ud800\d+\ud801)@)?)(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_][\w.-]*)?"
    r"(?P<port>:\d+)?(?P<path>/[^\s\"'<>(){}|,;\ud800\ud801]*)?"
)
UUID = re.compile(r"(?i)(?<![0-9a-f])[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![0-9a-f-])")
#: The identifier of a container or an image, the key of a service: no number of NCCL has as many digits.
LONG_HEX = re.compile(
    r"(?<![0-9A-Za-z])(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])(?:[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{32})(?![0-9A-Za-z])"
)
CLOUD = re.compile(
    r"(?<![\w-])(?:i|ami|vpc|subnet|sg|eni|vol|snap|fs|fsx|lt|rtb|eipalloc|pcluster)-(?=[0-9a-f]*\d)[0-9a-f]{8,17}(?![\w-])"
)
#: The name that a cloud gives a machine holds its address.
ADDRESS_NAME = re.compile(r"(?<![\w.-])(?P<host>ip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3})(?![\w-])")
#: The number of an account, where something says that it is one.
ACCOUNT = re.compile(
    r"(?i)(?P<head>\barn:[\w-]*:[\w-]*:[\w-]*:|\baccount(?:[ _-]?id)?[\"']?[ =:]{1,3}[\"']?)(?P<account>\d{10,12})\b"
    r"|(?<![\w.])(?P<registry>\d{12})(?=\.dkr\.ecr\.)"
)
PROJECT = re.compile(r"(?P<head>(?<![\w])(?:projects|subscriptions|resourceGroups)/)(?P<project>[\w-]+)(?=/)")
GUID = re.compile(
    r"(?i)(?P<head>\b(?:node_?|port_?|sys_?|system_?|image_?)?guid[\"']?[ =:]{1,3}[\"']?)(?P<guid>(?:0x)?[0-9a-f]{4}(?::[0-9a-f]{4}){3}|(?:0x)?[0-9a-f]{12,16})\b"
)
#: A part of a word that is the name of a project, say.
PART = re.compile(r"[^\W_]+")
PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
END_OF_KEY = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")
#: A key of JSON whose value is a name.
JSON_NAME = re.compile(
    r"(?P<head>\"(?P<key>host|host_?name|nodename|node_?name|node|pod|master_addr|master|user|user_?name|owner|login)\" ?: ?\")"
    r"(?P<name>[^\"\\\ud800\ud801]+)(?=\")",
    re.IGNORECASE,
)
JSON_PID = re.compile(
    r"(?P<head>\"(?:pid|ppid|tid|lwp|process_id|thread_id|native_id)\" ?: ?\"?)(?P<pid>\d+)\b", re.IGNORECASE
)
#: What a trace of Python, or a tool, calls a file, also where its path is relative.
FILE = re.compile(
    r"(?P<head>\bFile \"|\"(?:filename|file|path|cwd|exe|cmdline)\" ?: ?\")(?P<path>[^\"\ud800\ud801]+)(?=\")"
)

NOT_HOSTS = frozenset({"localhost", "NCCL", "rank", "peer", "local", "lo", "eth0", "?"})
NOT_USERS = frozenset(
    {"root", "git", "buffer", "buf", "id", "name", "space", "defined", "provided", "env", "rank", "by"}
)
_VERSION = re.compile(r"(?i)(?:version|ver|release|cudnn|cuda|driver|\bv|==|lib\w*-)[ :=v]{0,3}$")


def is_address(text: str) -> bool:
    """Whether a text is the address of a machine, and not that of each machine."""
    if text.count(":") < 2 and text.count(".") != 3:
        return False
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return not (address.is_loopback or address.is_unspecified or text.startswith("255.255."))


def is_version(text: str, at: int) -> bool:
    """Whether a number with three dots at a place of a text is a version."""
    return _VERSION.search(text, max(at - 16, 0), at) is not None


def label(kind: str) -> str:
    """What a kind of name is called in a note to the user."""
    return _LABELS.get(kind, kind)


_LABELS = {
    "host": "host name",
    "ip": "address",
    "mac": "hardware address",
    "user": "user name",
    "name": "name in a path",
    "token": "token or password",
    "id": "container id, UUID or key",
    "cloud": "cloud resource",
    "account": "account number",
    "guid": "GUID",
}
