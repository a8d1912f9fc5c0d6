//! Where metrics are known by name, and their Prometheus text.

use crate::histogram::{Cells, Histogram, Snapshot, Unit, bump};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Series of one metric name; more are counted in the series without labels. Labels that come from outside cannot fill the memory.
pub const SERIES_MAX: usize = 1024;

/// A number that only grows, recorded on one thread.
#[derive(Clone)]
pub struct Counter(Arc<AtomicU64>, PhantomData<Rc<()>>);

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }
    /// Adds.
    pub fn add(&self, n: u64) {
        bump(&self.0, n);
    }
    /// What was counted through this handle and its clones.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that goes up and down. What the threads (and handles) set is summed.
#[derive(Clone)]
pub struct Gauge(Arc<AtomicI64>, PhantomData<Rc<()>>);

impl Gauge {
    /// Sets this handle's part.
    pub fn set(&self, value: i64) {
        self.0.store(value, Relaxed);
    }
    /// Adds to this handle's part.
    pub fn add(&self, n: i64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }
    /// This handle's part.
    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

enum Series {
    /// What dropped handles counted, and the cells of live ones.
    Counter(u64, Vec<Arc<AtomicU64>>),
    Gauge(Vec<Arc<AtomicI64>>),
    Histogram(Box<Snapshot>, Vec<Arc<Cells>>),
}

impl Series {
    /// Takes the sums of cells that nobody writes to any more over, so that short-lived handles cost nothing lasting.
    fn fold(&mut self) {
        match self {
            Self::Counter(retired, cells) => cells.retain(|cell| {
                let live = Arc::strong_count(cell) > 1;
                if !live {
                    *retired = retired.wrapping_add(cell.load(Relaxed));
                }
                live
            }),
            Self::Gauge(cells) => cells.retain(|cell| Arc::strong_count(cell) > 1),
            Self::Histogram(retired, cells) => cells.retain(|cell| {
                let live = Arc::strong_count(cell) > 1;
                if !live {
                    cell.add_to(retired);
                }
                live
            }),
        }
    }
    const fn kind(&self) -> &'static str {
        match self {
            Self::Counter(..) => "counter",
            Self::Gauge(..) => "gauge",
            Self::Histogram(..) => "histogram",
        }
    }
}

struct Family {
    help: &'static str,
    unit: Unit,
    /// By rendered labels (`a="b",c="d"`).
    series: BTreeMap<String, Series>,
}

/// All metrics by name. Making a handle takes a lock; recording does not.
#[derive(Default)]
pub struct Registry {
    families: Mutex<BTreeMap<&'static str, Family>>,
}

impl Registry {
    /// The one of this process.
    pub fn global() -> &'static Registry {
        static GLOBAL: OnceLock<Registry> = OnceLock::new();
        GLOBAL.get_or_init(Registry::default)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Family>> {
        // A panic while the lock was held leaves sums, not broken invariants.
        self.families.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn with<T>(
        &self,
        name: &'static str,
        help: &'static str,
        unit: Unit,
        labels: &[(&str, &str)],
        empty: fn() -> Series,
        join: impl FnOnce(Option<&mut Series>) -> T,
    ) -> T {
        let mut families = self.lock();
        let family =
            families.entry(name).or_insert_with(|| Family { help, unit, series: BTreeMap::new() });
        let mut key = render_labels(labels);
        if family.series.len() >= SERIES_MAX && !family.series.contains_key(&key) {
            key.clear();
        }
        let kind = empty().kind();
        let series = family.series.entry(key).or_insert_with(empty);
        series.fold();
        // A name used for two kinds is a defect; the second user's numbers are not shown rather than mixed in.
        join((series.kind() == kind).then_some(series))
    }

    /// A counter; its name ends with `_total`.
    pub fn counter(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&str, &str)],
    ) -> Counter {
        let cell = Arc::new(AtomicU64::new(0));
        let empty = || Series::Counter(0, Vec::new());
        self.with(name, help, Unit::Count, labels, empty, |series| {
            if let Some(Series::Counter(_, cells)) = series {
                cells.push(cell.clone());
            }
        });
        Counter(cell, PhantomData)
    }

    /// A gauge.
    pub fn gauge(&self, name: &'static str, help: &'static str, labels: &[(&str, &str)]) -> Gauge {
        let cell = Arc::new(AtomicI64::new(0));
        let empty = || Series::Gauge(Vec::new());
        self.with(name, help, Unit::Count, labels, empty, |series| {
            if let Some(Series::Gauge(cells)) = series {
                cells.push(cell.clone());
            }
        });
        Gauge(cell, PhantomData)
    }

    /// A histogram; its name ends with `_seconds` if the unit is [`Unit::Nanoseconds`].
    pub fn histogram(
        &self,
        name: &'static str,
        help: &'static str,
        unit: Unit,
        labels: &[(&str, &str)],
    ) -> Histogram {
        let cells = Arc::new(Cells::new());
        let empty = || Series::Histogram(Box::default(), Vec::new());
        self.with(name, help, unit, labels, empty, |series| {
            if let Some(Series::Histogram(_, all)) = series {
                all.push(cells.clone());
            }
        });
        Histogram { cells, _thread: PhantomData }
    }

    /// Everything in the Prometheus text format, version 0.0.4.
    pub fn text(&self) -> String {
        let mut out = String::with_capacity(16 << 10);
        for (name, family) in self.lock().iter_mut() {
            let kind = family.series.values().next().map_or("untyped", Series::kind);
            let _ = writeln!(out, "# HELP {name} {}\n# TYPE {name} {kind}", family.help);
            for (labels, series) in &mut family.series {
                series.fold();
                write_series(&mut out, name, labels, family.unit, series);
            }
        }
        out
    }
}

fn write_series(out: &mut String, name: &str, labels: &str, unit: Unit, series: &Series) {
    let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    match series {
        Series::Counter(retired, cells) => {
            let sum = cells.iter().fold(*retired, |sum, c| sum.wrapping_add(c.load(Relaxed)));
            let _ = writeln!(out, "{name}{braces} {sum}");
        }
        Series::Gauge(cells) => {
            let sum = cells.iter().fold(0i64, |sum, c| sum.wrapping_add(c.load(Relaxed)));
            let _ = writeln!(out, "{name}{braces} {sum}");
        }
        Series::Histogram(retired, cells) => {
            let mut sum = (**retired).clone();
            cells.iter().for_each(|c| c.add_to(&mut sum));
            write_histogram(out, name, labels, &braces, unit, &sum);
        }
    }
}

fn write_histogram(
    out: &mut String,
    name: &str,
    labels: &str,
    braces: &str,
    unit: Unit,
    sum: &Snapshot,
) {
    // 1 us to 69 s; 512 bytes to 64 GiB; 1 to 16 M things.
    let (powers, scale) = match unit {
        Unit::Nanoseconds => (10..=36, 1e-9),
        Unit::Bytes => (9..=36, 1.0),
        Unit::Count => (0..=24, 1.0),
    };
    let comma = if labels.is_empty() { "" } else { "," };
    for power in powers {
        let limit = 1u64 << power;
        let le = limit as f64 * scale;
        let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{le}\"}} {}", sum.below(limit));
    }
    let count = sum.count();
    let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}");
    let _ = writeln!(out, "{name}_sum{braces} {}", sum.sum() as f64 * scale);
    let _ = writeln!(out, "{name}_count{braces} {count}");
}

fn render_labels(labels: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (key, value) in labels {
        if !out.is_empty() {
            out.push(',');
        }
        out.push_str(key);
        out.push_str("=\"");
        for c in value.chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '"' => out.push_str("\\\""),
                '\n' => out.push_str("\\n"),
                c => out.push(c),
            }
        }
        out.push('"');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_what_prometheus_reads() {
        let r = Registry::default();
        let c = r.counter("calls_total", "Calls.", &[("method", "RE\"AD\n")]);
        c.inc();
        r.counter("calls_total", "Calls.", &[("method", "RE\"AD\n")]).add(2); // dropped at once: still counted
        r.gauge("open", "Open things.", &[]).set(5); // dropped: not there any more
        let g = r.gauge("open", "Open things.", &[]);
        g.set(7);
        g.add(-1);
        let h = r.histogram("wait_seconds", "Waits.", Unit::Nanoseconds, &[("q", "a")]);
        h.record(1500);
        h.record(3_000_000_000);
        let text = r.text();
        assert!(
            text.contains("# TYPE calls_total counter\ncalls_total{method=\"RE\\\"AD\\n\"} 3\n"),
            "{text}"
        );
        assert!(text.contains("# TYPE open gauge\nopen 6\n"), "{text}");
        assert!(text.contains("wait_seconds_bucket{q=\"a\",le=\"0.000001024\"} 0\n"), "{text}");
        assert!(text.contains("wait_seconds_bucket{q=\"a\",le=\"0.000002048\"} 1\n"), "{text}");
        assert!(text.contains("wait_seconds_bucket{q=\"a\",le=\"+Inf\"} 2\n"), "{text}");
        assert!(text.contains("wait_seconds_count{q=\"a\"} 2\n"), "{text}");
        assert!(text.contains("wait_seconds_sum{q=\"a\"} 3.0000015\n"), "{text}");
    }

    #[test]
    fn threads_are_summed() {
        let r = Arc::new(Registry::default());
        let ends: Vec<_> = (0..3)
            .map(|_| {
                let r = r.clone();
                std::thread::spawn(move || {
                    let c = r.counter("x_total", "X.", &[]);
                    (0..1000).for_each(|_| c.inc());
                })
            })
            .collect();
        ends.into_iter().for_each(|t| t.join().expect("thread"));
        assert!(r.text().contains("x_total 3000\n"));
    }

    #[test]
    fn labels_from_outside_are_bounded() {
        let r = Registry::default();
        for i in 0..SERIES_MAX + 100 {
            r.counter("y_total", "Y.", &[("k", &i.to_string())]).inc();
        }
        let text = r.text();
        assert!(text.lines().count() <= SERIES_MAX + 3);
        assert!(text.contains("y_total 100\n"), "the rest is summed");
    }
}
