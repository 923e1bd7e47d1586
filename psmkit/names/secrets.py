"""What secrets look like in texts: tokens of known form, the values of settings and of options of commands, and what stands before the host of a URL."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

__all__ = ["has", "replace"]

Put = Callable[[str, str], str]

_SHOWN = re.compile(r"(?:token\d+\W*)+")  # pseudonyms, with what a tighter pattern left behind them
_COUNT = re.compile(r"\d{1,9}(?![\w.+/=-])")
# Of what is set aside already; no decoded text holds them.
_MARKS = r"\ud800\ud801"
_FROM_SIGHT = "hf_ gh glpat- xox AKIA ASIA sk- nvapi- AIza ya29 dckr_ pypi- eyJ SG. k_live_ k_test_ npm_".split()
_NAMED = ("key", "secret", "passw", "passphrase", "credential", "token", "sig")
_COMMANDS = ("login", "mysql", "mariadb", "sshpass", "curl")

#: Tokens and keys that show what they are by their form.
_TOKEN = re.compile(
    r"(?<![\w-])(?:hf_[A-Za-z0-9]{16,}|gh[opusr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}|"
    r"(?:AKIA|ASIA)[A-Z0-9]{16}|sk-[\w-]{20,}|nvapi-[\w-]{20,}|AIza[\w-]{30,}|ya29\.[\w-]{20,}|dckr_pat_[\w-]{20,}|pypi-[\w-]{40,}|"
    r"SG\.[\w-]{16,}\.[\w-]{16,}|[rs]k_(?:live|test)_\w{16,}|npm_[A-Za-z0-9]{30,}|eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?)"
)
#: What follows such a word is a token, whatever its form.
_BEARER = re.compile(r"(?i)(?P<head>\b(?:bearer|authorization: ?(?:basic|token|bearer)) +)(?P<token>[\w.~+/=-]{6,})")
_NO_SECRET = r"(?!None\b|null\b|[Tt]rue\b|[Ff]alse\b|\*|\(masked\)|\[key\])"
#: A setting or a key of JSON whose name says that its value is a secret: the name of an environment variable, for example. A count of
#: tokens is none.
_SETTING = re.compile(
    r"(?i)(?P<head>(?<![A-Za-z0-9])[\w.-]{0,60}?(?:api_?key|access_?key|account_?key|secret|password|passwd|passphrase|credentials?|auth_?token|"
    r"access_?token|security-token|hf_token|hub_token|_token|private_?key|(?-i:(?<=_)KEY))(?:_?id)?[\"']? ?[=:] ?[\"']?)"
    rf"(?P<token>{_NO_SECRET}[^\s\"',;&}}\]){_MARKS}]{{3,}})"
)
#: A setting whose value is a secret if it is long and has a digit: a signature in a URL, no number of a signal.
_LONG_SETTING = re.compile(
    r"(?i)(?P<head>(?<![A-Za-z0-9])(?:sig|signature|token)[\"']?(?:=|: ?)[\"']?)(?P<token>(?!0x)(?=[a-z%+/.~=_-]{0,40}\d)[\w%+/.~=-]{16,})"
)
#: The account of a storage, which stands beside its key.
_STORAGE = re.compile(r"(?i)(?P<head>(?<![A-Za-z0-9])AccountName=)(?P<name>[a-z0-9]+)")
#: user:password@ in a URL. The user of git's servers is none.
_CREDENTIALS = re.compile(
    rf"(?P<head>\b[A-Za-z][A-Za-z0-9+.-]{{0,20}}://)(?!git@)(?P<token>[^\s/@\"'<>{_MARKS}]{{1,500}})(?=@)"
)
_GAP = r"(?:[ =]+|[\"'], ?)[\"']?"  # between an option and its value, also in a list of arguments
_VALUE = rf"(?:(?<=\")[^\"{_MARKS}]{{3,}}(?=\")|(?<=')[^'{_MARKS}]{{3,}}(?=')|[^\s\"'{_MARKS}]{{3,}})"
#: An option whose value is a secret. Of a sentence about one, or a variable in its place, nothing is.
_OPTION = re.compile(
    r"(?i)(?P<head>(?<![\w-])--?(?!(?:max|min|num|pad|eos|bos|unk|mask|sep|cls|stop|image|special)[-_])[\w-]{0,60}?"
    rf"(?:token|password|passwd|passphrase|secret|api[-_]?key|access[-_]?key|secret[-_]?key|private[-_]?key|auth[-_]?key){_GAP})"
    r"(?P<token>(?!-|\$|<|(?:and|are|but|can|for|has|is|must|not|option|options|argument|flag|required|should|was|with)(?![^\s.,;:]))"
    rf"{_NO_SECRET}{_VALUE})"
)
_REST = r"(?P<rest>(?:(?! && | \|\|? |; ).)*)"  # of a command
_FIRST = r"(?P<head>(?<![^\s\"',])"
_NAME = rf"[A-Za-z_][^\s\"',{_MARKS}]*"
#: Commands, and the options of each that are secrets or names of users. The same letters are other options of other commands.
_OPTIONS_OF = (
    (
        re.compile(
            r"(?P<head>\b(?:docker|podman|nerdctl|buildah|skopeo|oras|crane|helm|apptainer|singularity)"
            rf"(?:[ \"',]{{1,4}}[\w=./:-]{{1,80}}){{0,4}}?[ \"',]{{1,4}}login\b){_REST}"
        ),
        (
            ("user", re.compile(rf"{_FIRST}-u(?:{_GAP})?)(?P<value>{_NAME})")),
            ("token", re.compile(rf"{_FIRST}-p(?:{_GAP})?)(?P<value>(?!-|\$){_VALUE})")),
        ),
    ),
    (
        re.compile(rf"(?P<head>(?<![\w.-])(?:mysql[a-z]{{0,8}}|mariadb(?:-[a-z]{{1,12}})?)(?=[ \"'])){_REST}"),
        (
            ("user", re.compile(rf"{_FIRST}-u(?:{_GAP})?)(?P<value>{_NAME})")),
            ("token", re.compile(rf"{_FIRST}-p[\"']?)(?P<value>(?!\$){_VALUE})")),  # behind a blank stands a database
        ),
    ),
    (
        re.compile(r"(?P<head>(?<![\w.-])sshpass)(?P<rest>[ \"',]{1,4}-p[^\n]*)"),
        (("token", re.compile(rf"^(?P<head>[ \"',]{{1,4}}-p(?:{_GAP})?)(?P<value>(?!\$){_VALUE})")),),
    ),
    (
        re.compile(rf"(?P<head>(?<![\w.-])curl(?=[ \"'])){_REST}"),
        (("token", re.compile(rf"{_FIRST}(?:-u|--user)(?:{_GAP})?)(?P<value>[^\s\"':\\{_MARKS}]+:{_VALUE})")),),
    ),
)


def has(text: str, words: Sequence[str]) -> bool:
    """Whether a text has one of these parts; a loop is faster than any()."""
    for word in words:  # noqa: SIM110
        if word in text:
            return True
    return False


def replace(text: str, low: str, put: Put) -> str:
    """A text in which secrets, and the users beside them, are replaced by what ``put`` gives for a kind and a name."""

    def token(match: re.Match[str]) -> str:
        head: str = match["head"]
        return head + put("token", match["token"])

    def setting(match: re.Match[str]) -> str:
        head, value = match["head"], match["token"]
        if _SHOWN.fullmatch(value) or (_COUNT.match(value) and "passw" not in head.lower()):
            return match.group()
        return head + put("token", value)

    if "://" in text:
        text = _CREDENTIALS.sub(token, text)
    if has(text, _FROM_SIGHT):
        text = _TOKEN.sub(lambda m: put("token", m.group()), text)
    if has(low, _NAMED):
        if "-" in text:
            text = _OPTION.sub(setting, text)
        text = _LONG_SETTING.sub(setting, _SETTING.sub(setting, text))
        if "accountname=" in low:
            text = _STORAGE.sub(lambda m: m["head"] + put("words", m["name"]), text)
    if "bearer" in low or "authorization" in low:
        text = _BEARER.sub(token, text)
    if has(low, _COMMANDS):
        for command, options in _OPTIONS_OF:
            text = command.sub(partial(_options, put=put, options=options), text)
    return text


def _options(match: re.Match[str], put: Put, options: Sequence[tuple[str, re.Pattern[str]]]) -> str:
    rest = match["rest"]
    for kind, option in options:
        rest = option.sub(partial(_value, put=put, kind=kind), rest)
    return str(match["head"]) + rest


def _value(match: re.Match[str], put: Put, kind: str) -> str:
    value = match["value"]
    return str(match.group()) if _SHOWN.fullmatch(value) else match["head"] + put(kind, value)
