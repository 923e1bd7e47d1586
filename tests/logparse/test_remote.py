"""URLs as inputs: which psmkit reads, and what it says of the others. tests/cluster reads from a store."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import psmkit
from psmkit.logparse.inputs import discover
from psmkit.logparse.remote import is_url, local_path, remote_files
from psmkit.model.errors import InputError
from psmkit.report import render
from tests.loggen import generate


def test_a_file_url_is_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "a job"
    folder.mkdir()
    for file, text in generate("stop_in_init", "2.27").files().items():
        (folder / file).write_text(text)
    url = "file://" + str(folder).replace(" ", "%20")
    assert render(psmkit.analyze([url]), "json") == render(psmkit.analyze([str(folder)]), "json")


def test_a_file_url_of_another_machine_is_refused() -> None:
    with pytest.raises(InputError, match="file:///PATH"):
        local_path("file://server/share/job")
    assert local_path("file://localhost/x") == "/x"
    assert local_path("s3://bucket/x") is None


@pytest.mark.parametrize("path", ["rank0.log", "/a/b:c/d", "a:b//c", "1s3://x"])
def test_a_path_is_no_url(path: str) -> None:
    assert not is_url(path)


@pytest.mark.parametrize(
    "url",
    [
        "simplecache::s3://bucket/x",
        "memory://x",
        "sftp://host/x",
        "github://org:repo@main/x",
        "http://host/x",
        "reference://x",
        "jdbc://$(touch owned)/x",
        "dask-worker://;touch owned",
    ],
)
def test_urls_of_other_kinds_are_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="psmkit reads file://, s3://"):
        discover([url])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAKEY:hunter2@bucket/job/",
        "s3://hunter2@bucket/job/",
        "gs://user:hunter2@bucket/job/",
        "s3://bucket/job/x.log?X-Amz-Signature=hunter2&X-Amz-Date=1",
        "az://container/x?sig=hunter2",
        "abfs://container:hunter2@account/x",
    ],
)
def test_a_url_with_a_secret_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InputError) as caught:
        list(remote_files(url))
    assert "hunter2" not in str(caught.value) and "AKIA" not in str(caught.value)
    assert "write the URL without" in str(caught.value)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InputError, match=r"needs the packages fsspec and s3fs \(pip install 'psmkit\[dask\]'\)"):
        discover(["s3://bucket/job/"])
    with pytest.raises(InputError, match="adlfs"):
        discover(["az://container/job/"])


def test_what_a_store_says_is_shown_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")

    class Store:
        @staticmethod
        def _strip_protocol(url: str) -> str:
            return url

        def isfile(self, _path: str) -> bool:
            raise RuntimeError("cannot reach https://me:hunter2@host/bucket?sig=hunter2\nTraceback")

    monkeypatch.setattr(fsspec, "filesystem", lambda *_: Store())
    with pytest.raises(InputError, match="the store cannot be read: RuntimeError") as caught:
        discover(["s3://bucket/x"])
    assert "hunter2" not in str(caught.value) and "\n" not in str(caught.value)
