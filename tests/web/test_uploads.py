"""The folder of uploads stays within its limit."""

import os
from pathlib import Path

from whence.web.uploads import UploadFolder


def test_old_uploads_make_room_for_new_ones(tmp_path, monkeypatch):
    monkeypatch.setattr("whence.web.uploads.MAX_UPLOAD_BYTES", 10)
    monkeypatch.setattr("whence.web.uploads.MAX_FOLDER_BYTES", 40)
    uploads = UploadFolder(tmp_path)
    paths = []
    for n in range(6):
        paths.append(uploads.store("a", b"0123456789"))
        os.utime(paths[-1], (n, n))
    assert [Path(path).is_file() for path in paths] == [False, False, True, True, True, True]
