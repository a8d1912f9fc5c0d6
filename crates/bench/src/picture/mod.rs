//! Pictures as SVG, without a library: axes, curves, heat maps, bars. Colours and fonts come from the page's style sheet by class.

mod bars;
mod curves;
mod heat;
mod scale;
mod svg;

pub use bars::{Bar, bars};
pub use curves::{Curve, Curves, Point, Unit, curves};
pub use heat::{Heat, heat};
pub use svg::escape;
