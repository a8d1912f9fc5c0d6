import os
import pathlib
import uuid

import pytest


@pytest.fixture(scope="session")
def mount():
    """Where the cluster of this run is mounted."""
    place = os.environ.get("GLOWFS_TEST_MOUNT")
    if not place:
        pytest.exit("set GLOWFS_TEST_MOUNT to a GlowFS mount, or run scripts/python-test", 2)
    return pathlib.Path(place)


@pytest.fixture
def folder(mount):
    """A new directory of the mount."""
    path = mount / f"t-{uuid.uuid4().hex[:8]}"
    path.mkdir()
    return path
