//! Measures how fast pages are classified, and compares allocating memory of chosen colors with touching plain memory for the first time.
//!
//! `cargo bench -p isochrome-host` measures; under `cargo test` the same code runs on a small size.

use std::process::ExitCode;
use std::time::Instant;

use isochrome_host::color::pool::FramePool;
use isochrome_host::color::{ColorError, Survey, Target};
use isochrome_host::error::SystemError;
use isochrome_host::machine::setting::{RealtimeRequest, allowed_cpus};
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::sys::memory::{Arena, page_bytes};
use isochrome_model::palette::Method;
use isochrome_model::stats::median;
use isochrome_model::units::{Bytes, Color};

fn main() -> ExitCode {
    let sizes: (&[usize], usize) = if std::env::args().any(|argument| argument == "--bench") {
        (&[8192, 16384, 32768, 65536], 200)
    } else {
        (&[], 5)
    };
    match run(sizes.0, sizes.1) {
        Ok(()) => ExitCode::SUCCESS,
        // On a machine without colors, or one whose cache others keep busy, nothing can be measured. That is not a defect.
        Err(
            error @ (ColorError::OneColor { .. }
            | ColorError::TimingBlurred { .. }
            | ColorError::NoEviction { .. }
            | ColorError::CacheUnsteady { .. }
            | ColorError::CacheNotKept { .. }),
        ) => {
            println!("not measured: {error}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Default number of pages per color: twice as many as are allocated of one color.
const PAGES_PER_COLOR: usize = 64;

fn run(page_counts: &[usize], repeats: usize) -> Result<(), ColorError> {
    let sysfs = Sysfs::system();
    let (machine, processor) = (sysfs.machine()?.0, sysfs.processor()?);
    let cpu = *allowed_cpus()?.last().expect("a running thread may run somewhere");
    let _settings = RealtimeRequest::new().pin(cpu).apply();
    let target = Target::of(&machine, None, cpu)?;
    let small = [PAGES_PER_COLOR * target.geometry.color_count(machine.page_bytes) as usize];
    let page_counts = if page_counts.is_empty() { &small } else { page_counts };

    for method in [Method::Counters, Method::Timing] {
        for &pages in page_counts {
            let memory = Bytes(pages.max(target.sizes().pages_needed()) as u64 * page_bytes() as u64);
            let mut survey =
                match Survey::start_by(method, target, Survey::memory(target, memory)?, &processor, pages as u64) {
                    Ok(survey) => survey,
                    Err(error) if method == Method::Counters => {
                        println!(
                            "classify by counters: not measured: {}",
                            error.to_string().lines().next().unwrap_or_default()
                        );
                        break;
                    }
                    Err(error) => return Err(error),
                };
            survey.classify(pages)?;
            let collection = survey.finish();
            println!(
                "classify by {:<8} {pages:>6} pages: {:>6.2} us per page, {} colors, {} ambiguous, {:.2} s in all",
                method.name(),
                collection.us_per_page(),
                collection.inference.palette.colors,
                collection.inference.ambiguous.len(),
                collection.elapsed.as_secs_f64(),
            );
            if method == Method::Timing && Some(&pages) == page_counts.last() {
                let colors = collection.inference.palette.colors;
                allocate(&FramePool::new(collection.arena, &collection.inference.page_colors, colors), repeats)?;
            }
        }
    }
    Ok(())
}

/// Times regions of two colors from the pool and plain memory that is touched for the first time, alternately.
fn allocate(pool: &FramePool, repeats: usize) -> Result<(), ColorError> {
    for pages in [4, 16, 64] {
        let (mut colored, mut plain) = (Vec::new(), Vec::new());
        for _ in 0..repeats {
            let begin = Instant::now();
            let mut region = pool.take(&[Color(0), Color(1)], pages)?;
            touch(region.bytes_mut());
            colored.push(begin.elapsed().as_secs_f64() * 1e6 / pages as f64);
            drop(region);
            let begin = Instant::now();
            let mut arena = Arena::map(pages).map_err(|source| SystemError::Memory { pages, source })?;
            touch(arena.bytes_mut());
            plain.push(begin.elapsed().as_secs_f64() * 1e6 / pages as f64);
        }
        let (colored, plain) = (median(&colored).unwrap_or(f64::NAN), median(&plain).unwrap_or(f64::NAN));
        println!(
            "allocate {pages:>3} pages: colored {colored:.2} us per page, first touch {plain:.2} us per page, ratio {:.2}",
            colored / plain
        );
    }
    Ok(())
}

/// Writes to every page.
fn touch(memory: &mut [u8]) {
    for page in memory.chunks_mut(page_bytes()) {
        page[0] = 1;
    }
    std::hint::black_box(memory);
}
