import platform
import subprocess

import numpy as np

from edgelearn.lab.runs import run


def git(folder, *arguments):
    identity = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_environment():
    found = run.environment()
    assert found["python"] == platform.python_version()
    assert found["numpy"] == np.__version__
    assert found["platform"]
    assert {"edgelearn", "commit", "machine"} <= found.keys()


def test_commit(tmp_path):
    assert run.commit(tmp_path) is None
    git(tmp_path, "init")
    package = tmp_path / "package"
    package.mkdir()
    (package / "code.py").write_text("1")
    (tmp_path / "other").write_text("")
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "-m", "m")
    assert run.commit(package) is None  # installed inside somebody else's checkout
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "m")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert run.commit(package) == head and not run.changes(run.commit(package), package)
    (package / "code.py").write_text("2")
    assert run.commit(package) == f"{head}-dirty"
    (package / "new.py").write_text("3")
    kept = run.changes(run.commit(package), package)
    assert "-1\n" in kept and "+2\n" in kept and "# new file: new.py" in kept
    git(tmp_path, "checkout", "--", ".")
    (tmp_path / "kept.diff").write_text(kept)
    git(tmp_path, "apply", "kept.diff")
    assert (package / "code.py").read_text() == "2"


def test_changes_of_any_bytes_can_be_applied(tmp_path):
    git(tmp_path, "init")
    before, after = b"one\ntwo\n\n", "one\nzw\u00f6lf\n\n".encode("latin-1")  # the patch ends in an empty line
    (tmp_path / "text").write_bytes(before)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "m")
    (tmp_path / "text").write_bytes(after)
    kept = run.changes(run.commit(tmp_path), tmp_path)
    git(tmp_path, "checkout", "--", ".")
    (tmp_path / "kept.diff").write_bytes(kept.encode(errors="surrogateescape"))
    git(tmp_path, "apply", "kept.diff")
    assert (tmp_path / "text").read_bytes() == after


def test_no_git(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run.commit(tmp_path) is None
