//! A drawing: elements one after the other, with numbers rounded and text escaped.

use std::fmt::Write;

/// Text as it may stand in SVG and HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// See the module.
pub struct Svg {
    body: String,
    width: f64,
    height: f64,
}

/// Where text lies about its point.
#[derive(Clone, Copy)]
pub enum Anchor {
    /// It begins there.
    Start,
    /// It is centred there.
    Middle,
    /// It ends there.
    End,
}

impl Svg {
    /// An empty one of this size.
    pub fn new(width: f64, height: f64) -> Self {
        Self { body: String::new(), width, height }
    }
    /// A straight line.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let _ = writeln!(
            self.body,
            r#"<line class="{class}" x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
            from.0, from.1, to.0, to.1
        );
    }
    /// A line through points.
    pub fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let text: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(self.body, r#"<polyline class="{class}" points="{}"/>"#, text.join(" "));
    }
    /// A dot with a tip.
    pub fn dot(&mut self, class: &str, at: (f64, f64), radius: f64, tip: &str) {
        let _ = writeln!(
            self.body,
            r#"<circle class="{class}" cx="{:.1}" cy="{:.1}" r="{radius}"><title>{}</title></circle>"#,
            at.0,
            at.1,
            escape(tip)
        );
    }
    /// A box with a tip; `style` may be empty.
    pub fn rect(&mut self, class: &str, at: (f64, f64), size: (f64, f64), style: &str, tip: &str) {
        let _ = writeln!(
            self.body,
            r#"<rect class="{class}" x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}" rx="2" style="{style}"><title>{}</title></rect>"#,
            at.0,
            at.1,
            size.0.max(0.0),
            size.1.max(0.0),
            escape(tip)
        );
    }
    /// Text.
    pub fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = writeln!(
            self.body,
            r#"<text class="{class}" x="{:.1}" y="{:.1}" text-anchor="{anchor}">{}</text>"#,
            at.0,
            at.1,
            escape(text)
        );
    }
    /// Text that runs upwards.
    pub fn upwards(&mut self, class: &str, at: (f64, f64), text: &str) {
        let _ = writeln!(
            self.body,
            r#"<text class="{class}" transform="translate({:.1},{:.1}) rotate(-90)" text-anchor="middle">{}</text>"#,
            at.0,
            at.1,
            escape(text)
        );
    }
    /// The whole.
    pub fn finish(self, label: &str) -> String {
        format!(
            "<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {:.0} {:.0}\" xmlns=\"http://www.w3.org/2000/svg\">\n{}</svg>\n",
            escape(label),
            self.width,
            self.height,
            self.body
        )
    }
}
