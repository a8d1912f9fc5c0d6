"""Trains a small model on random samples that are read in batches through GlowFS's rings.

    python torch_samples.py /mnt/glow/some/directory [--workers 2] [--epochs 2]

`samples.bin` is made there if it is missing: 20,000 records of 1 + 1023 float32 (a label, then the features), 4 KiB each. Every
worker process of the `DataLoader` opens a session of its own; a batch is one call, whatever the number of its samples.
"""

import argparse
import pathlib
import time

import glowfs
import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

FEATURES = 1023


class RingDataset(Dataset):
    """Labels and features of samples, by lists of numbers: `dataset[[5, 1, 7]]` is a batch."""

    def __init__(self, path):
        self.samples = glowfs.Samples(path, shape=(1 + FEATURES,), dtype="float32")

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, numbers):
        records = torch.from_numpy(self.samples[numbers])
        return records[:, 0], records[:, 1:]


def loader(dataset, batch_size, workers, **options):
    """Random batches. The sampler gives whole batches of numbers (`batch_size=None`), so that each is read in one go."""
    sampler = BatchSampler(RandomSampler(dataset), batch_size, drop_last=False)
    return DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=workers, **options)


def make(path, count, seed=1):
    """A file of samples whose label is a linear function of the features."""
    random = np.random.default_rng(seed)
    weights = random.standard_normal(FEATURES).astype("float32") / 32
    with open(path, "wb") as f:
        for first in range(0, count, 1000):
            features = random.standard_normal((min(1000, count - first), FEATURES)).astype("float32")
            np.hstack([(features @ weights)[:, None], features]).astype("float32").tofile(f)


def train(path, checkpoint, *, epochs=2, batch_size=256, workers=2):
    """Returns the mean loss of each epoch. The model is kept in `checkpoint`."""
    dataset = RingDataset(path)
    model = torch.nn.Linear(FEATURES, 1)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(epochs):
        total, began = 0.0, time.monotonic()
        for labels, features in loader(dataset, batch_size, workers):
            loss = torch.nn.functional.mse_loss(model(features)[:, 0], labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
        losses.append(total / len(dataset))
        print(f"loss {losses[-1]:.4f}, {len(dataset) / (time.monotonic() - began):,.0f} samples/s")
        torch.save(model.state_dict(), checkpoint)
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--count", type=int, default=20_000)
    options = parser.parse_args()
    path = options.directory / "samples.bin"
    if not path.exists():
        make(path, options.count)
    train(path, options.directory / "model.pt", epochs=options.epochs, workers=options.workers)


if __name__ == "__main__":
    main()
