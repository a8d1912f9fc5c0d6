"""`Samples`, with a stand-in for PyTorch's DataLoader that follows its protocol: workers in processes of their own, batches of numbers."""

import multiprocessing
import os
import pickle

import glowfs
import numpy as np
import pytest

COUNT = 2000


@pytest.fixture
def path(folder):
    """Records of 3 x 5 int32, each full of its own number, behind a head of 100 bytes and before half a record."""
    path = folder / "samples"
    records = np.repeat(np.arange(COUNT, dtype=np.int32), 15)
    path.write_bytes(b"h" * 100 + records.tobytes() + b"t" * 30)
    return path


@pytest.fixture
def samples(path):
    return glowfs.Samples(path, (3, 5), np.int32, offset=100)


def test_samples(samples):
    assert len(samples) == COUNT and samples.sample_bytes == 60
    one = samples[7]
    assert one.shape == (3, 5) and (one == 7).all()
    assert (samples[-1] == COUNT - 1).all() and (samples[np.int64(3)] == 3).all()
    picks = np.random.default_rng(3).permutation(COUNT)
    batch = samples[picks]
    assert batch.shape == (COUNT, 3, 5) and (batch == picks[:, None, None]).all()
    assert [int(s[0, 0]) for s in samples.__getitems__([4, 9])] == [4, 9]
    assert samples[[]].shape == (0, 3, 5)
    for wrong in (COUNT, -COUNT - 1, [0, COUNT]):
        with pytest.raises(IndexError):
            samples[wrong]
    first = samples[[1]]
    samples[[2]]
    assert (first == 1).all(), "a batch is its own memory"


def test_reuse(path):
    samples = glowfs.Samples(path, (3, 5), np.int32, offset=100, reuse=True)
    first = samples[[1]]
    second = samples[[2]]
    assert (second == 2).all() and (first == 2).all(), "the shared memory itself"
    large = samples[list(range(COUNT))]
    assert (large[:, 0, 0] == np.arange(COUNT)).all() and (second == 2).all()


def test_a_file_that_was_cut(path, samples):
    os.truncate(path, 100 + 60 * 10 + 5)
    assert (samples[9] == 9).all()
    with pytest.raises(EOFError, match="sample 10"):
        samples[[3, 10, 4]]


def _stand_in_worker(dataset, jobs, results):
    while (job := jobs.get()) is not None:
        number, indices = job
        results.put((number, dataset[indices]))


def stand_in_loader(dataset, batches, workers, start):
    """What a DataLoader does with a sampler of batches: numbers to worker processes, arrays back, in order."""
    context = multiprocessing.get_context(start)
    jobs, results = context.Queue(), context.Queue()
    for job in [*enumerate(batches), *[None] * workers]:
        jobs.put(job)
    processes = [context.Process(target=_stand_in_worker, args=(dataset, jobs, results)) for _ in range(workers)]
    for p in processes:
        p.start()
    got = dict(results.get(timeout=120) for _ in batches)
    for p in processes:
        p.join()
        assert p.exitcode == 0
    return [got[i] for i in range(len(batches))]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_worker_processes_by_a_stand_in_for_the_dataloader(samples, start):
    assert (samples[5] == 5).all(), "the parent has a session already"
    batches = np.random.default_rng(4).permutation(COUNT).reshape(20, -1).tolist()
    for numbers, batch in zip(batches, stand_in_loader(samples, batches, 3, start)):
        assert batch[:, 2, 4].tolist() == numbers
    assert (samples[6] == 6).all()


def test_pickled(samples):
    samples[1]
    assert (pickle.loads(pickle.dumps(samples))[3] == 3).all()


def test_safetensors_through_the_mount(folder):
    numpy_format = pytest.importorskip("safetensors.numpy")
    tensors = {"a": np.arange(1 << 20, dtype=np.float32).reshape(1024, -1), "b": np.ones((3,), np.int8)}
    path = folder / "model.safetensors"
    numpy_format.save_file(tensors, path)
    back = numpy_format.load_file(path)
    assert all((back[k] == v).all() and back[k].dtype == v.dtype for k, v in tensors.items())
    from safetensors import safe_open

    with safe_open(path, "numpy") as f:  # mapped: pages of the mount
        assert (f.get_slice("a")[1000:1003] == tensors["a"][1000:1003]).all()
