//! Surveys of modeled caches, for tests.

use std::time::Instant;

use isochrome_model::geometry::Geometry;
use isochrome_model::palette::Method;
use isochrome_model::units::{Bytes, Color};

use super::{Collection, Survey};
use crate::color::error::ColorError;
use crate::color::modeled::ModeledEvictionTest;
use crate::color::target::Target;

/// Returns a target with 16 colors in an 8-way cache, as on Zen 3.
pub(super) fn target() -> Target {
    let geometry = Geometry::of_size(Bytes(512 << 10), 8, Bytes(64)).unwrap();
    Target { level: 2, geometry, inner: Bytes(32 << 10) }
}

/// Returns a survey by time whose eviction sets have been found.
pub(super) fn discovered(eviction_test: ModeledEvictionTest) -> Result<Survey, ColorError> {
    Survey::discover(target(), Method::Timing, Box::new(eviction_test), 1, Instant::now())
}

pub(super) fn survey(eviction_test: ModeledEvictionTest, pages: usize) -> (Collection, Vec<u16>) {
    let truth = eviction_test.colors.clone();
    let mut survey = Survey::discover(target(), Method::Timing, Box::new(eviction_test), 1, Instant::now()).unwrap();
    survey.classify(pages).unwrap();
    let truth = truth[..pages].to_vec();
    (survey.finish(), truth)
}

/// Returns the share of the colored pages whose color is the true one, up to numbering, and the number of pages without a color.
pub(super) fn against(truth: &[u16], collection: &Collection) -> (f64, usize) {
    let truth: Vec<Option<Color>> = truth.iter().map(|color| Some(Color(*color))).collect();
    let inference = &collection.inference;
    (isochrome_model::palette::agreement(&inference.page_colors, &truth).unwrap_or(0.0), inference.ambiguous.len())
}
