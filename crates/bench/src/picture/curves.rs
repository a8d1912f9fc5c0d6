//! Curves over two axes: throughput over latency, each dot a depth; or throughput over size.

use super::scale::Scale;
use super::svg::{Anchor, Svg};
use crate::progress::{bytes, count, micros};

/// A measured point.
#[derive(Clone, Debug)]
pub struct Point {
    /// Where on the horizontal axis.
    pub x: f64,
    /// Where on the vertical one.
    pub y: f64,
    /// What its tip says.
    pub tip: String,
}

/// Points that belong together.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Class of its colour: `c1`, `c2`, ...
    pub colour: String,
    /// Its points, in order.
    pub points: Vec<Point>,
    /// A level that was predicted, drawn as a broken line.
    pub limit: Option<f64>,
}

/// What the numbers of an axis are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Microseconds.
    Micros,
    /// Things.
    Count,
}

impl Unit {
    fn text(self, n: f64) -> String {
        match self {
            Unit::Bytes => bytes(n as u64),
            Unit::Micros => micros(n),
            Unit::Count => count(n),
        }
    }
    fn scale(self, (low, high): (f64, f64), from: f64, to: f64) -> Scale {
        match self {
            Unit::Bytes => Scale::bytes(low, high, from, to),
            _ => Scale::log(low, high, from, to),
        }
    }
}

/// A picture of curves.
pub struct Curves<'a> {
    /// Its heading.
    pub title: &'a str,
    /// What the horizontal axis says, and what its numbers are.
    pub x: (&'a str, Unit),
    /// The same of the vertical one.
    pub y: (&'a str, Unit),
    /// What it shows.
    pub curves: Vec<Curve>,
}

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 340.0;
/// Left, right, top, bottom.
const FRAME: (f64, f64, f64, f64) = (76.0, 494.0, 52.0, 292.0);

/// Draws them: both axes logarithmic.
pub fn curves(picture: &Curves<'_>) -> String {
    let (left, right, top, bottom) = FRAME;
    let mut svg = Svg::new(WIDTH, HEIGHT);
    svg.text("title", (left, 18.0), Anchor::Start, picture.title);
    let all = || picture.curves.iter().flat_map(|c| c.points.iter());
    let range = |values: Vec<f64>| {
        let positive = values.into_iter().filter(|v| *v > 0.0);
        positive.fold((f64::MAX, 0f64), |(a, b), v| (a.min(v), b.max(v)))
    };
    let xs = range(all().map(|p| p.x).collect());
    let ys =
        range(all().map(|p| p.y).chain(picture.curves.iter().filter_map(|c| c.limit)).collect());
    if xs.1 <= 0.0 || ys.1 <= 0.0 {
        svg.text("label", ((left + right) / 2.0, 160.0), Anchor::Middle, "nothing was measured");
        return svg.finish(picture.title);
    }
    let x = picture.x.1.scale(xs, left, right);
    let y = picture.y.1.scale(ys, bottom, top);
    for t in y.ticks() {
        svg.line("grid", (left, y.at(t)), (right, y.at(t)));
        svg.text("tick", (left - 6.0, y.at(t) + 4.0), Anchor::End, &picture.y.1.text(t));
    }
    for t in x.ticks() {
        svg.line("grid", (x.at(t), top), (x.at(t), bottom));
        svg.text("tick", (x.at(t), bottom + 16.0), Anchor::Middle, &picture.x.1.text(t));
    }
    svg.line("axis", (left, bottom), (right, bottom));
    svg.line("axis", (left, top), (left, bottom));
    svg.text("label", ((left + right) / 2.0, HEIGHT - 8.0), Anchor::Middle, picture.x.0);
    svg.upwards("label", (14.0, (top + bottom) / 2.0), picture.y.0);
    for c in &picture.curves {
        if let Some(limit) = c.limit {
            svg.line(&format!("limit {}", c.colour), (left, y.at(limit)), (right, y.at(limit)));
        }
        let at: Vec<_> = c.points.iter().map(|p| (x.at(p.x), y.at(p.y))).collect();
        svg.path(&format!("curve {}", c.colour), &at);
        for (p, at) in c.points.iter().zip(&at) {
            svg.dot(&format!("dot {}", c.colour), *at, 3.6, &p.tip);
        }
    }
    legend(&mut svg, picture);
    svg.finish(picture.title)
}

fn legend(svg: &mut Svg, picture: &Curves<'_>) {
    let mut x = FRAME.0;
    let limits = picture.curves.iter().any(|c| c.limit.is_some());
    for c in &picture.curves {
        svg.line(&format!("curve {}", c.colour), (x, 36.0), (x + 16.0, 36.0));
        svg.text("legend", (x + 20.0, 40.0), Anchor::Start, &c.name);
        x += 34.0 + 6.6 * c.name.chars().count() as f64;
    }
    if limits {
        svg.line("limit", (x, 36.0), (x + 16.0, 36.0));
        svg.text("legend", (x + 20.0, 40.0), Anchor::Start, "predicted limit");
    }
}
