//! Bars side by side: one load through all layers.

use super::scale::Scale;
use super::svg::{Anchor, Svg};

/// One bar.
pub struct Bar {
    /// What it is of.
    pub name: String,
    /// How long it is.
    pub value: f64,
    /// What is written behind it.
    pub text: String,
    /// Where a mark is set: the limit.
    pub limit: Option<f64>,
    /// Class of its colour.
    pub colour: &'static str,
}

const WIDTH: f64 = 520.0;
const LEFT: f64 = 118.0;
const RIGHT: f64 = 376.0;
const STEP: f64 = 27.0;

/// Draws them from above downwards.
pub fn bars(title: &str, all: &[Bar]) -> String {
    let mut svg = Svg::new(WIDTH, 40.0 + STEP * all.len() as f64);
    svg.text("title", (6.0, 18.0), Anchor::Start, title);
    let high = all.iter().flat_map(|b| [b.value, b.limit.unwrap_or(0.0)]).fold(0.0, f64::max);
    let x = Scale::linear(high, LEFT, RIGHT);
    for (i, b) in all.iter().enumerate() {
        let y = 34.0 + STEP * i as f64;
        svg.text("legend", (LEFT - 8.0, y + 14.0), Anchor::End, &b.name);
        svg.rect(
            &format!("bar {}", b.colour),
            (LEFT, y),
            (x.at(b.value) - LEFT, STEP - 7.0),
            "",
            &b.text,
        );
        if let Some(limit) = b.limit {
            svg.line("mark", (x.at(limit), y - 2.0), (x.at(limit), y + STEP - 5.0));
        }
        let end = x.at(b.value.max(b.limit.unwrap_or(0.0)));
        svg.text("tick", (end + 6.0, y + 14.0), Anchor::Start, &b.text);
    }
    svg.finish(title)
}
