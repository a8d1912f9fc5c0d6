//! Frames, connections and RPC over tcp and shm, behind one interface.
