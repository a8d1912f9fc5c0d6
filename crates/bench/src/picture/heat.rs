//! Heat maps: a number for each depth and number of jobs, by colour and in figures.

use super::svg::{Anchor, Svg};

/// A heat map.
pub struct Heat<'a> {
    /// Its heading.
    pub title: &'a str,
    /// Depths, from left to right.
    pub depths: &'a [u32],
    /// Jobs, from below upwards.
    pub jobs: &'a [u32],
    /// The number of a cell: value, what is written into it, what its tip says. None: not measured.
    pub cell: &'a dyn Fn(u32, u32) -> Option<(f64, String, String)>,
    /// The value of full colour.
    pub top: f64,
}

const LEFT: f64 = 46.0;
const TOP: f64 = 30.0;
/// Smallest and greatest width of a picture's field of cells.
const FIELD: f64 = 212.0;

/// Draws it.
pub fn heat(h: &Heat<'_>) -> String {
    let columns = h.depths.len().max(1) as f64;
    let (w, tall) = (FIELD / columns, if h.jobs.len() > 3 { 26.0 } else { 34.0 });
    let bottom = TOP + tall * h.jobs.len() as f64;
    let mut svg = Svg::new(LEFT + FIELD + 8.0, bottom + 36.0);
    svg.text("title small", (LEFT, 18.0), Anchor::Start, h.title);
    for (row, jobs) in h.jobs.iter().rev().enumerate() {
        let y = TOP + tall * row as f64;
        svg.text("tick", (LEFT - 6.0, y + tall / 2.0 + 4.0), Anchor::End, &jobs.to_string());
        for (column, depth) in h.depths.iter().enumerate() {
            let x = LEFT + w * column as f64;
            let (at, size) = ((x + 0.75, y + 0.75), (w - 1.5, tall - 1.5));
            let Some((value, text, tip)) = (h.cell)(*depth, *jobs) else {
                svg.rect("empty", at, size, "", "left out");
                continue;
            };
            let part = if h.top > 0.0 { (value / h.top).clamp(0.0, 1.0) } else { 0.0 };
            svg.rect("cell", at, size, &format!("fill:{}", colour(part)), &tip);
            if w >= 26.0 {
                let class = if part > 0.62 { "figure dark" } else { "figure light" };
                svg.text(class, (x + w / 2.0, y + tall / 2.0 + 3.5), Anchor::Middle, &text);
            }
        }
    }
    for (column, depth) in h.depths.iter().enumerate() {
        svg.text(
            "tick",
            (LEFT + w * (column as f64 + 0.5), bottom + 14.0),
            Anchor::Middle,
            &depth.to_string(),
        );
    }
    svg.text("label", (LEFT + FIELD / 2.0, bottom + 31.0), Anchor::Middle, "depth");
    svg.upwards("label", (12.0, (TOP + bottom) / 2.0), "jobs");
    svg.finish(h.title)
}

/// From dark blue over green to yellow, readable in grey as well (close to «viridis»).
fn colour(part: f64) -> String {
    const STOPS: [(f64, [f64; 3]); 5] = [
        (0.0, [68.0, 1.0, 84.0]),
        (0.25, [59.0, 82.0, 139.0]),
        (0.5, [33.0, 145.0, 140.0]),
        (0.75, [94.0, 201.0, 98.0]),
        (1.0, [253.0, 231.0, 37.0]),
    ];
    let next = STOPS.iter().position(|(at, _)| *at >= part).unwrap_or(STOPS.len() - 1).max(1);
    let ((a, from), (b, to)) = (STOPS[next - 1], STOPS[next]);
    let t = (part - a) / (b - a);
    let c: Vec<String> =
        from.iter().zip(to).map(|(f, to)| format!("{:.0}", f + (to - f) * t)).collect();
    format!("rgb({})", c.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_go_from_end_to_end() {
        assert_eq!((colour(0.0), colour(1.0)), ("rgb(68,1,84)".into(), "rgb(253,231,37)".into()));
        assert_eq!(colour(0.5), "rgb(33,145,140)");
    }
}
