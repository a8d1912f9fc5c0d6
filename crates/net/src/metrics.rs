//! What this crate counts: per method calls made and served, their time, their errors; broken connections.

use crate::Response;
use glowfs_rt::Duration;
use glowfs_telemetry::{Counter, Gauge, Histogram, Registry, Unit};
use glowfs_types::wire::method::name;
use glowfs_types::{Result, Status};
use std::cell::RefCell;

/// Method numbers from here on share one place.
const METHODS_MAX: usize = 1024;

struct Method {
    time: Histogram,
    errors: Counter,
}

#[derive(Default)]
struct Metrics {
    open: Option<Gauge>,
    called: Vec<Option<Method>>,
    served: Vec<Option<Method>>,
}

thread_local! {
    static METRICS: RefCell<Metrics> = RefCell::default();
}

fn record(
    of: impl FnOnce(&mut Metrics) -> &mut Vec<Option<Method>>,
    names: (&'static str, &'static str),
    method: u16,
    time: Duration,
    ok: bool,
) {
    METRICS.with_borrow_mut(|metrics| {
        let all = of(metrics);
        let place = usize::from(method).min(METHODS_MAX);
        if all.len() <= place {
            all.resize_with(place + 1, || None);
        }
        let Some(slot) = all.get_mut(place) else { return };
        let entry = slot.get_or_insert_with(|| {
            let labels = [("method", name(method))];
            let registry = Registry::global();
            Method {
                time: registry.histogram(
                    names.0,
                    "Time of calls by method.",
                    Unit::Nanoseconds,
                    &labels,
                ),
                errors: registry.counter(names.1, "Calls that failed, by method.", &labels),
            }
        });
        entry.time.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        if !ok {
            entry.errors.inc();
        }
    });
}

/// A call of ours ended.
pub(crate) fn called(method: u16, time: Duration, result: &Result<Response>) {
    let names = ("glowfs_rpc_call_seconds", "glowfs_rpc_call_errors_total");
    record(|m| &mut m.called, names, method, time, result.is_ok());
}

/// A call of the peer was answered.
pub(crate) fn served(method: u16, time: Duration, ok: bool) {
    let names = ("glowfs_rpc_served_seconds", "glowfs_rpc_served_errors_total");
    record(|m| &mut m.served, names, method, time, ok);
}

/// A connection was closed for what the peer sent.
pub(crate) fn broken(status: Status) {
    let help = "Connections closed for a message that was not well-formed.";
    let status = status.to_string();
    Registry::global()
        .counter("glowfs_rpc_broken_connections_total", help, &[("status", &status)])
        .inc();
}

/// A connection began (1) or ended (-1).
pub(crate) fn open(change: i64) {
    METRICS.with_borrow_mut(|metrics| {
        let make = || Registry::global().gauge("glowfs_rpc_connections", "Open connections.", &[]);
        metrics.open.get_or_insert_with(make).add(change);
    });
}
