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
    r"(?i)(?P<head>/(?:home|Users)/|\b(?:user(?:name)?|logname|login|owner)[ =:]{1,2}[\"']?)(?P<user>[A-Za-z_][\w.-]*)"
)
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
PUBLIC = re.compile(r"^/(?:dev|sys|proc)(?:/|$)|^/(?:home|Users)/?$")
#: A word in which a name may stand, with the labels of a domain behind it.
WORD = re.compile(r"(?<![\w.\ud800-])[\w-]+(?:\.[\w-]+)*")

#: Tokens and keys that show what they are by their form.
TOKEN = re.compile(
    r"(?<![\w-])(?:hf_[A-Za-z0-9]{16,}|gh[opusr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}|"
    r"(?:AKIA|ASIA)[A-Z0-9]{16}|sk-[\w-]{20,}|nvapi-[\w-]{20,}|AIza[\w-]{30,}|ya29\.[\w-]{20,}|dckr_pat_[\w-]{20,}|pypi-[\w-]{40,}|"
    r"eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?)"
)
#: What follows such a word is a token, whatever its form.
BEARER = re.compile(r"(?i)(?P<head>\b(?:bearer|authorization: ?(?:basic|token|bearer)) +)(?P<token>[\w.~+/=-]{6,})")
#: A setting or a key of JSON whose name says that its value is a secret: the name of an environment variable, for example. A count of
#: tokens is none.
SETTING = re.compile(
    r"(?i)(?P<head>(?<![A-Za-z0-9])[\w.-]{0,60}?(?:api_?key|access_?key|secret|password|passwd|passphrase|credentials?|auth_?token|access_?token|"
    r"hf_token|hub_token|_token|private_?key|(?-i:(?<=_)KEY))(?:_?id)?[\"']? ?[=:] ?[\"']?)"
    r"(?P<token>(?!\d{1,9}(?![\w.+/=-])|None\b|null\b|[Tt]rue\b|[Ff]alse\b|\*)[^\s\"',;&}\])\ud800\ud801]{3,})"
)
#: user:password@ in a URL.
CREDENTIALS = re.compile(r"(?P<head>\b[A-Za-z][A-Za-z0-9+.-]{0,20}://)(?P<token>[^\s/@\"'<>\ud800\ud801]{1,500})(?=@)")
#: The place that a URL names, without the path behind it.
URL = re.compile(
    r"(?P<head>\b(?P<scheme>[A-Za-z][A-Za-z0-9+-]{0,20})://(?:\ud800\d+\ud801@)?)(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_][\w.-]*)?"
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
NOT_USERS = frozenset({"root", "buffer", "buf", "id", "name", "space", "defined", "provided", "env", "rank", "by"})
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
