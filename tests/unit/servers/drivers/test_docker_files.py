from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Code, SlipstreamError
from orchestrator.schemas import ModelSpec, PathSource
from orchestrator.schemas.hosts import HostSpec
from orchestrator.servers.drivers.docker_files import Binds, own_container
from orchestrator.servers.launch import Launch

ID = "3f" * 32


def spec(**keys: Any) -> HostSpec:
    return HostSpec.model_validate({"name": "d", "driver": "docker", "images": {"default": "i"}} | keys)


def launch(target: Path, drafter: Path | None = None) -> Launch:
    return Launch(ModelSpec(name="m", source=PathSource(path="m.gguf")), target, drafter, ())


def file(path: Path, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    path.chmod(mode)
    return path


def test_each_file_is_bound_by_itself_read_only(tmp_path: Path) -> None:
    target, drafter = file(tmp_path / "m.gguf"), file(tmp_path / "d.gguf")
    mounts = Binds(spec()).of(launch(target, drafter))
    assert [m["Source"] for m in mounts] == [m["Target"] for m in mounts] == [str(target), str(drafter)]
    assert all(m["ReadOnly"] and m["Type"] == "bind" for m in mounts)


def test_one_file_that_is_both_is_bound_once(tmp_path: Path) -> None:
    target = file(tmp_path / "m.gguf")
    assert len(Binds(spec()).of(launch(target, target))) == 1


def test_all_shards_are_bound(tmp_path: Path) -> None:
    shards = [file(tmp_path / f"m-{i:05d}-of-00003.gguf") for i in (1, 2, 3)]
    assert [m["Target"] for m in Binds(spec()).of(launch(shards[0]))] == list(map(str, shards))


def test_a_link_is_bound_by_its_own_name_from_where_it_leads(tmp_path: Path) -> None:
    blob = file(tmp_path / "blobs" / "abc")
    link = tmp_path / "m.gguf"
    link.symlink_to(blob)
    [mount] = Binds(spec()).of(launch(link))
    assert (mount["Source"], mount["Target"]) == (str(blob), str(link))


def test_paths_of_our_own_container_become_those_of_its_host(tmp_path: Path) -> None:
    target = file(tmp_path / "cache" / "hub" / "m.gguf")
    own = [
        {"Type": "bind", "Source": "/srv", "Destination": str(tmp_path)},
        {"Type": "volume", "Source": "/var/lib/docker/volumes/c/_data", "Destination": str(tmp_path / "cache")},
    ]
    [mount] = Binds(spec(), own).of(launch(target))
    assert mount["Source"] == "/var/lib/docker/volumes/c/_data/hub/m.gguf", "the deepest mount counts"
    assert mount["Target"] == str(target)


def test_a_file_of_our_own_container_alone_is_refused(tmp_path: Path) -> None:
    own = [{"Type": "bind", "Source": "/srv", "Destination": "/elsewhere"}]
    with pytest.raises(SlipstreamError, match=r"m\.gguf lies in the orchestrator's own container"):
        Binds(spec(), own).of(launch(file(tmp_path / "m.gguf")))


@pytest.mark.parametrize("user, mode, is_readable", [("10001:10001", 0o640, False), ("0:0", 0o600, True)])
def test_a_file_that_the_user_cannot_read_is_named(tmp_path: Path, user: str, mode: int, is_readable: bool) -> None:
    target = file(tmp_path / "m.gguf", mode)
    if is_readable:
        assert Binds(spec(user=user)).of(launch(target))
        return
    with pytest.raises(SlipstreamError) as caught:
        Binds(spec(user=user)).of(launch(target))
    assert caught.value.code is Code.MISCONFIGURED and "m.gguf" in caught.value.message
    assert str(tmp_path) not in caught.value.message


def test_a_file_that_went_meanwhile_is_incomplete(tmp_path: Path) -> None:
    with pytest.raises(SlipstreamError) as caught:
        Binds(spec()).of(launch(tmp_path / "m.gguf"))
    assert caught.value.code is Code.MODEL_INCOMPLETE


def test_mounts_of_the_hosts_file_take_the_place_of_single_files(tmp_path: Path) -> None:
    target = file(tmp_path / "m.gguf", 0o600)
    mounts = [{"source": "models", "target": str(tmp_path)}, {"source": "/srv/x", "target": "/x"}]
    made = Binds(spec(mounts=mounts)).of(launch(target))
    assert [(m["Type"], m["Source"], m["Target"]) for m in made] == [
        ("volume", "models", str(tmp_path)),
        ("bind", "/srv/x", "/x"),
    ]
    assert all(m["ReadOnly"] for m in made)


def test_a_link_out_of_the_mounts_is_refused(tmp_path: Path) -> None:
    inside = tmp_path / "in" / "m.gguf"
    inside.parent.mkdir()
    inside.symlink_to(file(tmp_path / "out" / "m.gguf"))
    host = spec(mounts=[{"source": "models", "target": str(inside.parent)}])
    with pytest.raises(SlipstreamError, match=r"below no `target`"):
        Binds(host).of(launch(inside))


def test_our_own_container_is_told_by_its_mounts(tmp_path: Path) -> None:
    info = tmp_path / "mountinfo"
    info.write_text(
        "22 1 0:2 / / rw - overlay overlay rw,lowerdir=/x\n"
        f"30 22 8:1 /var/lib/docker/containers/{ID}/hostname /etc/hostname rw - ext4 /dev/vda rw\n"
    )
    assert own_container(info) == ID
    info.write_text("22 1 0:2 / / rw - ext4 /dev/vda rw\n")
    assert own_container(info) is None and own_container(tmp_path / "absent") is None
