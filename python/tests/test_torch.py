"""PyTorch itself: the example, `torch.save` and `load`, safetensors. Run by `scripts/python-test --torch`."""

import os
import pathlib
import sys

import pytest

if os.environ.get("GLOWFS_TEST_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="scripts/python-test --torch")

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))
import torch_samples  # noqa: E402


@pytest.mark.parametrize("workers", [0, 2])
def test_each_sample_comes_once_an_epoch(folder, workers):
    path = folder / "samples.bin"
    torch_samples.make(path, 1000)
    dataset = torch_samples.RingDataset(path)
    expected = dataset[list(range(1000))]
    for _ in range(2):
        batches = list(torch_samples.loader(dataset, 64, workers))
        assert [len(labels) for labels, _ in batches] == [64] * 15 + [40]
        labels = torch.cat([labels for labels, _ in batches])
        assert not torch.equal(labels, expected[0]), "in another order"
        assert torch.equal(labels.sort().values, expected[0].sort().values)
        assert torch.cat([f for _, f in batches]).shape == (1000, torch_samples.FEATURES)


def test_workers_that_are_spawned(folder):
    path = folder / "samples.bin"
    torch_samples.make(path, 300)
    batches = torch_samples.loader(torch_samples.RingDataset(path), 100, 2, multiprocessing_context="spawn")
    assert sum(len(labels) for labels, _ in batches) == 300


def test_the_example_learns_and_its_checkpoint_comes_back(folder):
    path, checkpoint = folder / "samples.bin", folder / "model.pt"
    torch_samples.make(path, 4000)
    losses = torch_samples.train(path, checkpoint, epochs=3, batch_size=64, workers=2)
    assert losses[-1] < losses[0] / 2
    state = torch.load(checkpoint)
    assert state["weight"].shape == (1, torch_samples.FEATURES)


def test_save_and_load_of_many_tensors(folder):
    tensors = {str(i): torch.randn(257, 1 + 511 * i) for i in range(8)}
    torch.save(tensors, folder / "t.pt")
    back = torch.load(folder / "t.pt")
    assert all(torch.equal(back[k], v) for k, v in tensors.items())


def test_safetensors(folder):
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {str(i): torch.randn(257, 1 + 511 * i) for i in range(4)}
    safetensors.save_file(tensors, folder / "t.safetensors")
    back = safetensors.load_file(folder / "t.safetensors")
    assert all(torch.equal(back[k], v) for k, v in tensors.items())
