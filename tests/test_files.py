"""Files that are whole or absent, also after a power cut."""

import os
import stat

from fedlens.core import files


def recorded(monkeypatch, fails=False):
    """What is synced, and when the file gets its name."""
    seen = []

    def fsync(handle):
        folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        seen.append("folder" if folder else "content")
        if folder and fails:
            raise OSError(22, "Invalid argument")

    replace = os.replace
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", lambda *names: seen.append("named") or replace(*names))
    return seen


def test_content_is_synced_before_its_name_and_the_name_after(tmp_path, monkeypatch):
    seen = recorded(monkeypatch)
    files.write(tmp_path / "new" / "model", "whole")
    assert seen == ["content", "named", "folder"]
    assert (tmp_path / "new" / "model").read_text() == "whole"


def test_a_file_system_that_cannot_sync_folders_keeps_files_all_the_same(tmp_path, monkeypatch):
    seen = recorded(monkeypatch, fails=True)
    files.write(tmp_path / "model", "whole")
    assert seen[-1] == "folder"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
