mod section;

pub use section::section;
