//! Which targets make which chains: pure and deterministic.
