//! `glowfs bench`: every layer once, very shortly, and the page of it; nothing is left behind.

use crate::harness::{Scratch, alone, binary, eventually, must, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::process::{Command, Stdio};

fn bench(scratch: &Scratch, options: &str) -> (Value, String) {
    let (json, html) = (scratch.path.join("r.json"), scratch.path.join("r.html"));
    let mut c = Command::new(binary());
    c.args(["bench", "--seconds", "0.05", "--size", "64M", "--dir"]).arg(&scratch.path);
    c.args(options.split(' ')).arg("--json").arg(&json).arg("--html").arg(&html);
    must(&mut c);
    let text = std::fs::read_to_string(json).expect("the results");
    let page = std::fs::read_to_string(html).expect("the page");
    (serde_json::from_str(&text).expect("JSON"), page)
}

#[test]
fn all_layers_and_a_small_sweep() {
    let _alone = alone();
    let scratch = Scratch::new("bench");
    let (report, page) = bench(&scratch, "--blocks 4K --depths 4 --jobs 1");
    let rows = report["rows"].as_array().expect("rows");
    let layers = "disk checksum ring transport network store storage client mount sweep".split(' ');
    for layer in layers {
        let mut of = rows.iter().filter(|r| r["layer"] == layer).peekable();
        assert!(of.peek().is_some(), "nothing of {layer}");
        for r in of {
            assert!(r.get("skipped").is_none() && r["ops_per_second"].as_f64() > Some(0.0), "{r}");
        }
    }
    assert!(page.contains("Through the layers") && page.contains("predicted limit"));
    assert!(page.contains("GlowFS rings") || page.contains("mount, rings"));
    let left: Vec<_> = std::fs::read_dir(&scratch.path).expect("directory").flatten().collect();
    assert_eq!(left.len(), 2, "only the results are left: {left:?}");
}

#[test]
fn wrong_options() {
    for (options, word) in [
        ("--blocks 5000", "5000"),
        ("--size 1M", "64M"),
        ("--seconds 0", "time"),
        ("--layer all", "all"),
        ("--from x", "--html"),
        ("--fio-engine /no/engine.so", "/no/engine.so"),
        ("--layer checksum --dir /no/where", "--dir /no/where"),
    ] {
        let o = run(Command::new(binary()).arg("bench").args(options.split(' ')));
        assert!(
            o.code != 0 && o.err.contains(word) && !o.err.contains("panicked"),
            "{options}: {}",
            o.err
        );
    }
}

/// Said at once, not after everything was measured.
#[test]
fn results_that_cannot_be_written() {
    let scratch = Scratch::new("bench-nowhere");
    let there = scratch.path.join("there");
    std::fs::write(&there, "results of before").expect("written");
    let nowhere = scratch.path.join("no/where.json");
    for (json, html) in [(&nowhere, &there), (&there, &nowhere), (&there, &scratch.path)] {
        let began = std::time::Instant::now();
        let mut c = Command::new(binary());
        c.args("bench --layer checksum --seconds 100 --size 64M --dir".split(' '));
        let o = run(c.arg(&scratch.path).arg("--json").arg(json).arg("--html").arg(html));
        assert!(o.code != 0 && o.err.contains("cannot be written"), "{}", o.err);
        assert!(began.elapsed().as_secs() < 50, "{:?}", began.elapsed());
        assert_eq!(std::fs::read_to_string(&there).expect("as it was"), "results of before");
        let left = std::fs::read_dir(&scratch.path).expect("directory").count();
        assert_eq!(left, 1, "nothing else is there");
    }
}

#[test]
fn interrupted_it_leaves_nothing() {
    let _alone = alone();
    let scratch = Scratch::new("bench-interrupted");
    let mut c = Command::new(binary());
    c.args(
        "bench --layer sweep --blocks 4K --depths 4 --jobs 1 --fio-seconds 100 --size 64M --dir"
            .split(' '),
    );
    let mut child = c.arg(&scratch.path).stderr(Stdio::null()).spawn().expect("glowfs bench");
    let entries =
        || std::fs::read_dir(&scratch.path).expect("directory").flatten().map(|e| e.path());
    // In the middle of the first run of fio: its file is there, and as long as it becomes.
    eventually("fio runs on the local directory", || {
        entries().any(|d| d.join("local/sweep").metadata().is_ok_and(|m| m.len() == 64 << 20))
    });
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).expect("a signal");
    assert_eq!(child.wait().expect("its end").code(), Some(130));
    assert_eq!(entries().count(), 0, "nothing is left");
}
