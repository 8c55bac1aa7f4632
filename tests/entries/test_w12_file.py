"""Records of w12-linear on disk: what comes back is what was written, or one line that says what is wrong."""

import json

import pytest
import torch

from benchmarks.overlay import overlay

overlay("w12-linear")

from kernels import w12, w12_file  # noqa: E402


def matrix(n=3, k=130, seed=0):
    """A matrix with an escape or two in each row."""
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) / 9
    weight[:, ::200], weight[:, 100::200] = 1e-20, torch.nan
    return weight.bfloat16()


def far_apart(rows):
    """A matrix whose first and last rows have an escape each."""
    weight = torch.ones(rows, 2, dtype=torch.bfloat16)
    weight[0, 1] = weight[-1, 0] = torch.inf
    return weight


def same(one, other):
    return one.shape == other.shape and torch.equal(one.view(torch.int16), other.view(torch.int16))


@pytest.fixture
def folder(tmp_path):
    """A written folder: a record, a plain tensor, and one that was left out."""
    writer = w12_file.Writer(tmp_path / "packed")
    writer.add("layers.0.qkv", w12.encode(matrix()))
    writer.add("a/name: of norms", torch.arange(5.0))
    writer.leave("head", "it does not pay")
    writer.close()
    return tmp_path / "packed"


def test_round_trip(folder):
    """A folder gives records, plain tensors and reasons back, as they were."""
    found = w12_file.Folder(folder)

    assert same(w12.decode(found.load("layers.0.qkv")), matrix())
    assert torch.equal(found.load("a/name: of norms"), torch.arange(5.0))
    assert sorted(found) == ["a/name: of norms", "layers.0.qkv"]
    assert found.left == {"head": "it does not pay"}


@pytest.mark.parametrize(
    "weight",
    [
        matrix(1, 1),
        matrix(2, 65),
        torch.zeros(7, 128).bfloat16(),
        matrix(1, 70000),
        torch.full((2, 400), 1e-30).bfloat16(),
        far_apart(400),
        far_apart(70000),
    ],
    ids=["1x1", "2x65", "zeros", "wide", "all escapes", "far apart", "farther apart"],
)
def test_every_width_of_numbers(weight, tmp_path):
    """Rows with none or thousands of escapes, in matrices narrow and wide, come back."""
    digest = w12_file.save_packed(tmp_path / "one", "w", w12.encode(weight))
    packed = w12_file.load(tmp_path / "one", "w", digest)

    assert same(w12.decode(packed), weight)
    assert packed.starts.dtype == packed.columns.dtype == torch.int32


@pytest.mark.parametrize("file", ["layers.0.qkv.safetensors", "a%2Fname%3A%20of%20norms.safetensors", "index.json"])
def test_every_flipped_bit_is_seen(file, folder):
    """Whichever single bit of a file flips, header, digest and padding included, loading says so in one line."""
    path = folder / file
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            with pytest.raises(w12_file.Damaged) as caught:
                found = w12_file.Folder(folder)
                for name in found:
                    found.load(name)
            assert file in str(caught.value) and "\n" not in str(caught.value)
    path.write_bytes(whole)
    assert sorted(w12_file.Folder(folder))


@pytest.mark.parametrize("length", [0, 7, 8, 100, -1])
def test_cut_files_are_seen(length, folder):
    """A file that ends early is damaged."""
    path = folder / "layers.0.qkv.safetensors"
    path.write_bytes(path.read_bytes()[:length])

    with pytest.raises(w12_file.Damaged, match=r"layers\.0\.qkv"):
        w12_file.Folder(folder).load("layers.0.qkv")


def test_exchanged_and_lost_files_are_seen(folder, tmp_path):
    """A whole file of another tensor or of another time is not taken for the one that the index names."""
    path = folder / "layers.0.qkv.safetensors"
    w12_file.save_packed(path, "layers.0.qkv", w12.encode(matrix(seed=1)))
    with pytest.raises(w12_file.Damaged, match="another file than the index names"):
        w12_file.Folder(folder).load("layers.0.qkv")
    digest = w12_file.save_packed(path, "layers.1.qkv", w12.encode(matrix()))
    with pytest.raises(w12_file.Damaged, match=r"holds 'layers\.1\.qkv', not 'layers\.0\.qkv'"):
        w12_file.load(path, "layers.0.qkv", digest)
    path.unlink()
    with pytest.raises(w12_file.Damaged, match="cannot be read: no such file"):
        w12_file.Folder(folder).load("layers.0.qkv")


def test_a_folder_without_its_index_is_none(folder):
    """Until the index is there, the last to be written, nothing was packed."""
    (folder / "index.json").unlink()
    with pytest.raises(w12_file.Damaged, match="holds no packed tensors"):
        w12_file.Folder(folder)


def test_other_versions_are_named(folder, tmp_path, monkeypatch):
    """A later version of the format is said to be one."""
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps({**index, "v": 2}))
    with pytest.raises(w12_file.Damaged, match="has version '2', and this reads 1"):
        w12_file.Folder(folder)
    monkeypatch.setattr(w12_file, "VERSION", 2)
    digest = w12_file.save_packed(tmp_path / "one", "w", w12.encode(matrix()))
    monkeypatch.undo()
    with pytest.raises(w12_file.Damaged, match="has version '2', and this reads 1"):
        w12_file.load(tmp_path / "one", "w", digest)


def test_stored_bytes_are_the_cost(tmp_path):
    """What a record costs is what its file holds, beside the header."""
    weight = (torch.randn(300, 500, generator=torch.Generator().manual_seed(0)) / 9).bfloat16()
    packed = w12.encode(weight)
    w12_file.save_packed(tmp_path / "one", "w", packed)
    data = (tmp_path / "one").read_bytes()
    stored = 8 * (len(data) - 8 - int.from_bytes(data[:8], "little"))

    assert stored == pytest.approx(w12.cost(packed).bits * weight.numel(), abs=1e-3)
