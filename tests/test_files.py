import hashlib
import json
import os
import re
import stat

import pytest

from electra import files
from electra.errors import InputError


@pytest.fixture
def sealed(tmp_path):
    folder = tmp_path / "artefact"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.bin").write_bytes(bytes(range(256)))
    (folder / "sub" / "b.txt").write_text("text")
    files.write_manifest(folder, {"kind": "thing", "name": "ü"})
    return folder


def problems(folder):
    return list(files.damaged_files(folder, files.read_manifest(folder, kind="thing")))


def test_a_whole_artefact_has_no_damage(sealed):
    assert files.read_manifest(sealed, kind="thing")["name"] == "ü"
    assert problems(sealed) == []


@pytest.mark.parametrize("name", ["a.bin", "sub/b.txt"])
def test_every_flipped_bit_is_found_and_named(sealed, name):
    path = sealed / name
    whole = path.read_bytes()
    for position in (0, len(whole) // 2, len(whole) - 1):
        broken = bytearray(whole)
        broken[position] ^= 4
        path.write_bytes(broken)
        (problem,) = problems(sealed)
        assert str(path) in problem
        assert "SHA-256" in problem


@pytest.mark.slow
def test_every_flipped_bit_of_the_manifest_is_found(sealed):
    path = sealed / files.MANIFEST
    whole = path.read_bytes()
    for position in range(len(whole)):
        for bit in range(8):
            broken = bytearray(whole)
            broken[position] ^= 1 << bit
            path.write_bytes(broken)
            with pytest.raises(InputError, match=r"manifest\.json"):
                files.read_manifest(sealed, kind="thing")


def test_whoever_may_read_new_files_may_read_a_sealed_folder(tmp_path):
    for name in ("ours.bin", "new.bin"):
        (tmp_path / name).write_bytes(b"weights")
    (tmp_path / "ours.bin").chmod(0o600)
    files.write_manifest(tmp_path, {"kind": "thing"})
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert set(modes.values()) == {modes["new.bin"]}


def test_truncated_and_missing_files_are_named_and_additional_ones_are_no_damage(sealed):
    (sealed / "a.bin").write_bytes(b"short")
    (sealed / "sub" / "b.txt").unlink()
    (sealed / "c").write_text("new")
    truncated, missing = problems(sealed)
    assert re.match(rf"{sealed}/a\.bin: .*\b5\b.*\b256\b", truncated)
    assert missing.startswith(f"{sealed}/sub/b.txt: ")
    manifest = files.read_manifest(sealed, kind="thing")
    assert files.stray_files(sealed, manifest) == [sealed / "c"]


def test_a_folder_without_manifest_or_of_another_kind_is_refused(sealed, tmp_path):
    with pytest.raises(InputError, match=r"\bthing\b.*\bdataset\b"):
        files.read_manifest(sealed, kind="dataset")
    with pytest.raises(InputError, match=r"dataset.*manifest\.json"):
        files.read_manifest(tmp_path, kind="dataset")


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "value.json"
    files.write_json(path, {"value": 1})

    def fail(file):
        file.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        files.write_file(path, fail)
    assert files.read_json(path) == {"value": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["value.json"]


def test_a_lock_is_exclusive_and_freed(tmp_path):
    with (
        files.locked(tmp_path / "lock", busy="busy"),
        pytest.raises(InputError, match="busy"),
        files.locked(tmp_path / "lock", busy="busy"),
    ):
        pass
    with files.locked(tmp_path / "lock", busy="busy"):
        pass


def test_a_folder_appears_when_it_is_whole_in_place_of_an_older_one(tmp_path):
    place = tmp_path / "thing"
    with files.appearing_whole(place) as folder:
        (folder / "a").write_text("first")
        assert not place.exists()
    with pytest.raises(ZeroDivisionError), files.appearing_whole(place) as folder:
        (folder / "b").write_text(str(1 / 0))
    assert (place / "a").read_text() == "first"
    with files.appearing_whole(place) as folder:
        (folder / "c").write_text("second")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["thing", "thing/c"]


def seal_again(folder, **named):
    """As somebody does who wants other files to be read."""
    path = folder / files.MANIFEST
    content = json.loads(path.read_bytes())
    del content["manifest_sha256"]
    content["files"] |= named
    checksum = hashlib.sha256(files.to_json(content)).hexdigest()
    files.write_json(path, {**content, "manifest_sha256": checksum})


@pytest.mark.parametrize(
    "name",
    [
        "../other",
        "{top}/other",
        "sub/../../other",
        "a\0b",
        "./a.bin",
        "sub/../a.bin",
        "sub//b.txt",
        ".",
        "",
        "a" * 256,
    ],
)
def test_a_manifest_names_files_of_its_folder_each_in_one_way(sealed, name):
    (sealed.parent / "other").write_text("elsewhere")
    facts = {"bytes": 9, "sha256": files.sha256(sealed.parent / "other")}
    seal_again(sealed, **{"a.bin": facts})
    files.read_manifest(sealed, kind="thing")
    seal_again(sealed, **{name.format(top=sealed.parent): facts})
    with pytest.raises(InputError, match=r"manifest\.json names"):
        files.read_manifest(sealed, kind="thing")


def test_files_may_be_links_as_version_control_of_data_makes_them(sealed, tmp_path):
    for path in [path for path in sealed.rglob("*") if path.is_file() and path.name != files.MANIFEST]:
        elsewhere = tmp_path / f"kept-{path.name}"
        path.rename(elsewhere)
        path.symlink_to(elsewhere)
    assert problems(sealed) == []
    elsewhere.write_bytes(b"changed")
    assert len(problems(sealed)) == 1
    path.unlink()
    path.symlink_to(path)
    assert len(problems(sealed)) == 1


@pytest.mark.parametrize("inner", ["", "final"])
def test_the_cache_of_the_hub_consists_of_links(tmp_path, inner):
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshots" / "0f3a" / inner
    blobs.mkdir()
    folder.mkdir(parents=True)
    (folder / "a.bin").write_bytes(b"weights")
    files.write_manifest(folder, {"kind": "thing"})
    (folder / "a.bin").rename(blobs / "77aa")
    (folder / "a.bin").symlink_to(blobs / "77aa")
    assert problems(folder) == []


def test_what_is_no_file_is_named_and_not_waited_for(sealed, tmp_path):
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, tmp_path / "none.json"):
        with pytest.raises(InputError, match=re.escape(str(path))):
            files.read_json(path)
    with pytest.raises(InputError, match=re.escape(str(pipe))), files.locked(pipe, busy="busy"):
        pass
    (sealed / files.MANIFEST).unlink()
    os.mkfifo(sealed / files.MANIFEST)
    with pytest.raises(InputError, match=r"manifest\.json"):
        files.read_manifest(sealed, kind="thing")
