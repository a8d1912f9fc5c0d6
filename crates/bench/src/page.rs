//! The report as one HTML page: no script, no font and no picture from elsewhere.

use crate::args::Layer;
use crate::picture::{Bar, Curve, Curves, Heat, Point, Unit, bars, curves, escape, heat};
use crate::progress::{bytes, count, micros};
use crate::row::{Report, Row};
use clap::ValueEnum;
use std::collections::BTreeSet;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");

/// Makes the page.
pub fn page(report: &Report) -> String {
    let mut out = String::new();
    head(&mut out, report);
    through_the_layers(&mut out, report);
    transport(&mut out, report);
    small_layers(&mut out, report);
    sweeps(&mut out, report);
    table(&mut out, report);
    out.push_str("</main></body></html>\n");
    out
}

fn head(out: &mut String, r: &Report) {
    let m = &r.machine;
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>GlowFS benchmark, {date}</title><style>{STYLE}</style></head><body><main>\n\
         <header><h1><span>Glow</span>FS benchmark</h1><p class=\"when\">{date} · version {version}{debug}</p></header>\n\
         <dl class=\"machine\"><div><dt>processors</dt><dd>{cores} × {cpu}</dd></div><div><dt>memory</dt><dd>{memory}</dd></div>\
         <div><dt>kernel</dt><dd>Linux {kernel}</dd></div><div><dt>load at the beginning</dt><dd>{load}</dd></div>\
         <div><dt>each measurement</dt><dd>{s} s; fio {f} s</dd></div></dl>\n",
        date = date(r.unix_seconds),
        version = escape(&r.version),
        debug = if r.optimised { "" } else { " · <strong>built without optimisation</strong>" },
        cores = m.cores,
        cpu = escape(&m.cpu),
        memory = bytes(m.memory),
        kernel = escape(&m.kernel),
        load = escape(&m.load),
        s = r.seconds[0],
        f = r.seconds[1],
    );
}

/// `2026-11-22 13:05 UTC` of seconds since 1970 (days to date by Howard Hinnant's formula).
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!(
        "{}-{month:02}-{date:02} {:02}:{:02} UTC",
        year + era * 400 + carry,
        rest / 3600,
        rest / 60 % 60
    )
}

fn section(out: &mut String, heading: &str, text: &str, pictures: &[String], class: &str) {
    if pictures.is_empty() {
        return;
    }
    let _ = write!(out, "<section><h2>{heading}</h2><p>{text}</p><div class=\"pictures {class}\">");
    for p in pictures {
        let _ = write!(out, "<figure>{p}</figure>");
    }
    out.push_str("</div></section>\n");
}

const STACK: [(&str, &str, &str, &str); 6] = [
    ("disk", "direct", "disk alone", "c0"),
    ("store", "one target", "chunk store", "c3"),
    ("storage", "1 replica", "storage, 1 copy", "c4"),
    ("client", "replicas", "client, 3 copies", "c5"),
    ("mount", "syscalls", "mount", "c1"),
    ("mount", "rings", "mount, rings", "c2"),
];

fn through_the_layers(out: &mut String, r: &Report) {
    let mut pictures = vec![];
    for (what, size, depth) in [
        ("read", 4096, 32),
        ("write", 4096, 32),
        ("read", 1 << 20, 4),
        ("write", 1 << 20, 4),
        ("read", 4096, 1),
        ("write", 4096, 1),
    ] {
        let mut rates = vec![];
        for (layer, way, name, colour) in STACK {
            let found = r.rows.iter().find(|r| {
                r.layer == layer
                    && r.way == way
                    && r.what == what
                    && r.bytes == size
                    && r.depth == depth
            });
            if let Some(row) = found {
                let rate = if size >= 1 << 20 {
                    format!("{}/s", bytes(row.bytes_per_second as u64))
                } else {
                    format!("{}/s", count(row.ops_per_second))
                };
                let cpu =
                    row.cpu_us_per_op.map_or(String::new(), |c| format!(" · CPU {}", micros(c)));
                rates.push(Bar {
                    name: name.into(),
                    value: row.ops_per_second,
                    text: rate + &cpu,
                    limit: row.limit_ops_per_second,
                    colour,
                });
            }
        }
        if rates.len() > 1 {
            pictures.push(bars(&format!("{} {what}, {depth} at a time", bytes(size)), &rates));
        }
    }
    let text = "The same load at each layer, from the disk upwards. The upright mark is the predicted limit: what the disk alone does, and a third of it where three copies \
        are written to this one disk. CPU is that of all processes that take part, for each operation.";
    section(out, "Through the layers", text, &pictures, "two");
}

fn transport(out: &mut String, r: &Report) {
    let of = |what: &str, way: &str, many: bool| -> Vec<&Row> {
        let mut rows: Vec<&Row> = r
            .rows
            .iter()
            .filter(|r| {
                r.layer == "transport" && r.what == what && r.way == way && (r.depth > 1) == many
            })
            .collect();
        rows.sort_by_key(|r| r.bytes);
        rows
    };
    let ways =
        [("shm", "shared memory", "c2"), ("unix", "Unix socket", "c3"), ("tcp", "TCP", "c1")];
    let tip = |r: &Row| {
        format!(
            "{} × {}: {}/s, {}/s, p50 {}, p99 {}",
            bytes(r.bytes),
            r.depth,
            count(r.ops_per_second),
            bytes(r.bytes_per_second as u64),
            micros(r.latency_us[1]),
            micros(r.latency_us[2])
        )
    };
    let mut pictures = vec![];
    for (what, title) in
        [("recv", "Bulk from the other end (read)"), ("send", "Bulk to the other end (write)")]
    {
        let curve =
            |(way, name, colour): (&str, &str, &str), many: bool, y: fn(&Row) -> f64| Curve {
                name: name.into(),
                colour: colour.into(),
                points: of(what, way, many)
                    .into_iter()
                    .map(|r| Point { x: r.bytes as f64, y: y(r), tip: tip(r) })
                    .collect(),
                limit: None,
            };
        let size = ("bytes of one operation", Unit::Bytes);
        let fast = Curves {
            title: &format!("{title}, 4 to 16 at a time"),
            x: size,
            y: ("bytes a second", Unit::Bytes),
            curves: ways.map(|w| curve(w, true, |r| r.bytes_per_second)).into(),
        };
        let slow = Curves {
            title: &format!("{title}, one at a time"),
            x: size,
            y: ("latency, half of them", Unit::Micros),
            curves: ways.map(|w| curve(w, false, |r| r.latency_us[1])).into(),
        };
        if fast.curves.iter().any(|c| !c.points.is_empty()) {
            pictures.extend([curves(&fast), curves(&slow)]);
        }
    }
    let text = "Two threads with a runtime each, both ends on this machine. With shared memory the bulk is named, not copied, so its speed says only that nothing is copied.";
    section(out, "Transport", text, &pictures, "two");
}

fn small_layers(out: &mut String, r: &Report) {
    let mut pictures = vec![];
    let rows = |layer: &'static str| r.rows.iter().filter(move |r| r.layer == layer);
    let sums: Vec<Bar> = rows("checksum")
        .filter(|r| r.bytes > 0)
        .map(|r| Bar {
            name: format!("{}, {}", bytes(r.bytes), r.way),
            value: r.bytes_per_second,
            text: format!("{}/s", bytes(r.bytes_per_second as u64)),
            limit: r.limit_ops_per_second.map(|l| l * r.bytes as f64),
            colour: "c4",
        })
        .collect();
    if !sums.is_empty() {
        pictures.push(bars("CRC-32C; the mark: a sum of the same words", &sums));
    }
    let echoes: Vec<Bar> = rows("ring")
        .chain(rows("transport").filter(|r| r.what == "echo"))
        .map(|r| Bar {
            name: format!("{} × {}", if r.layer == "ring" { "ring" } else { &r.way }, r.depth),
            value: r.cpu_us_per_op.unwrap_or(0.0),
            text: format!(
                "{} · {}/s · p50 {}",
                micros(r.cpu_us_per_op.unwrap_or(0.0)),
                count(r.ops_per_second),
                micros(r.latency_us[1])
            ),
            limit: None,
            colour: if r.layer == "ring" { "c2" } else { "c1" },
        })
        .collect();
    if !echoes.is_empty() {
        pictures.push(bars("CPU of a call of 64 B, both ends (shorter is better)", &echoes));
    }
    section(
        out,
        "Checksums, rings and calls",
        "What the smallest parts cost. A ring's round trip crosses two threads; the more go at a time, the fewer wake-ups each costs.",
        &pictures,
        "two",
    );
}

fn sorted<T: Ord + Copy>(rows: &[&Row], of: impl Fn(&Row) -> T) -> Vec<T> {
    rows.iter().map(|r| of(r)).collect::<BTreeSet<T>>().into_iter().collect()
}

const PLACES: [(&str, &str, &str); 3] = [
    ("local", "local disk", "c0"),
    ("mount", "GlowFS mount", "c1"),
    ("rings", "GlowFS rings", "c2"),
];

fn sweeps(out: &mut String, r: &Report) {
    let all: Vec<&Row> = r.rows.iter().filter(|r| r.layer == "sweep").collect();
    let fewest = all.iter().map(|r| r.jobs).min().unwrap_or(1);
    for (what, name) in [
        ("randread", "Random reads"),
        ("read", "Sequential reads"),
        ("randwrite", "Random writes"),
        ("write", "Sequential writes"),
    ] {
        let rows: Vec<&Row> = all.iter().copied().filter(|r| r.what == what).collect();
        if rows.is_empty() {
            continue;
        }
        let blocks = sorted(&rows, |r| r.bytes);
        let lines: Vec<String> = blocks.iter().map(|b| latency_curves(&rows, *b, fewest)).collect();
        let text = format!(
            "Throughput over latency, {fewest} job{}: each dot is a depth, from left to right. The broken line is the predicted limit: the best that the local disk did{}.",
            if fewest == 1 { "" } else { "s" },
            if what.ends_with("write") {
                ", divided by the three copies that lie on it"
            } else {
                ""
            }
        );
        section(out, &format!("{name} with fio"), &text, &lines, "two");
        for block in blocks {
            let maps: Vec<String> = PLACES
                .iter()
                .filter_map(|(way, place, _)| heat_map(&rows, block, way, place))
                .collect();
            if !maps.is_empty() {
                let _ = write!(
                    out,
                    "<div class=\"maps\"><h3>{name}, {}: depth and jobs</h3><div class=\"pictures heat\">",
                    bytes(block)
                );
                maps.iter().for_each(|m| {
                    let _ = write!(out, "<figure>{m}</figure>");
                });
                out.push_str("</div></div>\n");
            }
        }
    }
}

fn rate(r: &Row) -> String {
    if r.bytes >= 64 << 10 {
        format!("{}/s", bytes(r.bytes_per_second as u64))
    } else {
        format!("{}/s", count(r.ops_per_second))
    }
}

fn tip(r: &Row) -> String {
    let cpu = r.cpu_us_per_op.map_or(String::new(), |c| format!(", CPU {} each", micros(c)));
    let limit = r.of_limit().map_or(String::new(), |l| format!(", {l:.2} of the limit"));
    format!(
        "depth {}, jobs {}: {}, p50 {}, p99 {}{cpu}{limit}",
        r.depth,
        r.jobs,
        rate(r),
        micros(r.latency_us[1]),
        micros(r.latency_us[2])
    )
}

fn latency_curves(rows: &[&Row], block: u64, jobs: u32) -> String {
    let of = |way: &str| {
        let mut found: Vec<&Row> = rows
            .iter()
            .copied()
            .filter(|r| r.bytes == block && r.jobs == jobs && r.way == way && r.skipped.is_none())
            .collect();
        found.sort_by_key(|r| r.depth);
        found
    };
    let big = block >= 64 << 10;
    let y = |r: &Row| if big { r.bytes_per_second } else { r.ops_per_second };
    let best = of("local").into_iter().map(y).fold(0.0, f64::max);
    let copies = |way: &str| {
        of(way).iter().find_map(|m| {
            let local = rows.iter().find(|l| {
                l.way == "local" && (l.bytes, l.depth, l.jobs) == (m.bytes, m.depth, m.jobs)
            })?;
            m.limit_ops_per_second.filter(|l| *l > 0.0).map(|l| local.ops_per_second / l)
        })
    };
    let lines =
        PLACES.iter().filter(|(way, ..)| !of(way).is_empty()).map(|(way, name, colour)| Curve {
            name: (*name).into(),
            colour: (*colour).into(),
            points: of(way)
                .into_iter()
                .map(|r| Point { x: r.latency_us[0], y: y(r), tip: tip(r) })
                .collect(),
            limit: (*way == "mount").then(|| copies(way)).flatten().map(|c| best / c),
        });
    let axis =
        if big { ("bytes a second", Unit::Bytes) } else { ("operations a second", Unit::Count) };
    curves(&Curves {
        title: &format!("{} blocks", bytes(block)),
        x: ("mean latency", Unit::Micros),
        y: axis,
        curves: lines.collect(),
    })
}

fn heat_map(rows: &[&Row], block: u64, way: &str, place: &str) -> Option<String> {
    let of: Vec<&Row> = rows.iter().copied().filter(|r| r.bytes == block && r.way == way).collect();
    let (depths, jobs) = (sorted(&of, |r| r.depth), sorted(&of, |r| r.jobs));
    if of.is_empty() || (depths.len() < 2 && jobs.len() < 2) {
        return None;
    }
    // One colour scale for all places of a block size, so that they can be compared.
    let top =
        rows.iter().filter(|r| r.bytes == block).map(|r| r.ops_per_second).fold(0.0, f64::max);
    let cell = |depth: u32, jobs: u32| {
        let row = of.iter().find(|r| r.depth == depth && r.jobs == jobs && r.skipped.is_none())?;
        let text = if block >= 64 << 10 {
            format!("{:.0}", row.bytes_per_second / f64::from(1 << 20))
        } else {
            format!("{:.1}", row.ops_per_second / 1e3)
        };
        Some((row.ops_per_second, text, tip(row)))
    };
    let unit = if block >= 64 << 10 { "MiB/s" } else { "K/s" };
    Some(heat(&Heat {
        title: &format!("{place}, {unit}"),
        depths: &depths,
        jobs: &jobs,
        cell: &cell,
        top,
    }))
}

fn table(out: &mut String, r: &Report) {
    out.push_str("<section><details><summary>All figures</summary><div class=\"wide\"><table><thead><tr><th>layer<th>way<th>what<th>size<th>depth<th>jobs<th>a second<th>bytes a second<th>mean<th>p50<th>p99<th>CPU each<th>of the limit</tr></thead><tbody>\n");
    let order = |r: &&Row| {
        Layer::value_variants()
            .iter()
            .position(|l| l.to_possible_value().is_some_and(|v| v.get_name() == r.layer))
    };
    let mut rows: Vec<&Row> = r.rows.iter().collect();
    rows.sort_by_key(order);
    for r in rows {
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
            escape(&r.layer),
            escape(&r.way),
            escape(&r.what),
            bytes(r.bytes),
            r.depth,
            r.jobs
        );
        if let Some(why) = &r.skipped {
            let _ = writeln!(out, "<td colspan=7>left out: {}</tr>", escape(why));
            continue;
        }
        let [mean, p50, p99] = r.latency_us.map(micros);
        let cpu = r.cpu_us_per_op.map_or("–".into(), micros);
        let limit = r.of_limit().map_or("–".into(), |l| format!("{l:.2}"));
        let _ = writeln!(
            out,
            "<td>{}<td>{}/s<td>{mean}<td>{p50}<td>{p99}<td>{cpu}<td>{limit}</tr>",
            count(r.ops_per_second),
            bytes(r.bytes_per_second as u64)
        );
    }
    out.push_str("</tbody></table></div></details></section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(way: &str, depth: u32, rate: f64, limit: Option<f64>) -> Row {
        Row {
            layer: "sweep".into(),
            what: "randwrite".into(),
            way: way.into(),
            bytes: 4096,
            depth,
            jobs: 1,
            ops_per_second: rate,
            bytes_per_second: rate * 4096.0,
            latency_us: [100.0 * f64::from(depth); 3],
            limit_ops_per_second: limit,
            ..Row::default()
        }
    }

    #[test]
    fn a_page_has_its_pictures_and_escapes_what_it_is_told() {
        let mut report = Report { unix_seconds: 1_795_354_000, ..Report::default() };
        report.machine.cpu = "<b>&".into();
        for depth in [1, 4] {
            report.rows.push(sweep("local", depth, 9000.0, None));
            report.rows.push(sweep("mount", depth, 2000.0, Some(3000.0)));
        }
        report
            .rows
            .push(Row { skipped: Some("too <much>".into()), ..sweep("mount", 8, 0.0, None) });
        let page = page(&report);
        assert!(
            page.contains("predicted limit")
                && page.contains("class=\"cell\"")
                && page.contains("0.67 of the limit")
        );
        assert!(
            page.contains("&lt;b&gt;&amp;")
                && page.contains("too &lt;much&gt;")
                && !page.contains("<b>")
        );
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }

    #[test]
    fn an_empty_report_is_a_page() {
        assert!(page(&Report::default()).contains("1970-01-01 00:00 UTC"));
    }

    #[test]
    fn dates() {
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_795_354_000), "2026-11-22 13:26 UTC");
    }
}
