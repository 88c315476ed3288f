//! `isochrome bench interference`: what unmodified programs cost each other, on different CPUs and on one.

use std::fmt::Write;
use std::time::Duration;

use anyhow::{Result, ensure};
use isochrome_host::counters::{Counters, usable_slots};
use isochrome_host::events::{Event, Quantity, event, miss_events};
use isochrome_host::interference::{InterferenceRequest, conditions, interference};
use isochrome_host::interrupt;
use isochrome_host::ledger::Owner;
use isochrome_host::recolor::process::Pid;
use isochrome_model::interference::{Block, Interference, Program, Sharing, conclude};
use isochrome_model::miss_ratio::Touches;
use isochrome_model::report::interference::text;
use isochrome_model::units::{Color, CpuId};

use crate::args::{By, ChosenColors, InterferenceOptions, Place};
use crate::coloring::Coloring;
use crate::station::Station;
use crate::{Verdict, evidence, job, results};

/// Workloads where no programs are named; the last one leaves nothing of a second level of 1 MiB.
const WORKLOADS: [(&str, usize); 3] = [("filter", 8192), ("fft", 4096), ("write", 1024)];

/// So many times as long as a program is warmed up it runs in all.
const RUN_LENGTH: u32 = 4;

pub fn run(options: &InterferenceOptions) -> Result<Verdict> {
    let place =
        Place { cpu: options.cpu, level: options.level, by: By::Auto, memory: options.memory, seed: options.seed };
    let station = Station::new(&place)?;
    let named = if options.program.is_empty() { built_in(options)? } else { options.program.clone() };
    let programs: Vec<Vec<String>> = named.iter().map(|text| command(text)).collect::<Result<_>>()?;
    ensure!(programs.len() > 1, "one program has nobody to share with\n  hint: --program once for each of two or more");
    ensure!(
        options.turn.0 > 0 && options.turn.0.saturating_mul(programs.len() as u64) <= options.period.0,
        "{} programs have no turn of {} ms each within {} ms\n  hint: a longer --period",
        programs.len(),
        options.turn.0 as f64 / 1e6,
        options.period.0 as f64 / 1e6
    );
    let others: Vec<CpuId> = station.allowed.iter().copied().filter(|cpu| *cpu != station.cpu).collect();
    let mut warnings = Vec::new();
    let mut told = |text: String| {
        eprintln!("{text}");
        warnings.push(text);
    };
    let (coloring, lease) = match colored(options, &station) {
        Ok((coloring, lease)) => (Some(coloring), Some(lease)),
        Err(error) => {
            told(format!("No colors, so what they are worth is not shown: {error:#}"));
            (None, None)
        }
    };
    let shares: Vec<Vec<Color>> = match &coloring {
        Some(coloring) => shares(coloring.color_count(), programs.len())?,
        None => vec![Vec::new(); programs.len()],
    };
    if others.len() + 1 < programs.len() {
        told(match others.len() {
            0 => "There is one CPU only: nothing runs on different ones.".to_owned(),
            count => {
                format!("On different CPUs {count} of {} others run at a time, drawn by chance.", programs.len() - 1)
            }
        });
    }
    let events = events(&station);
    if events.is_empty() {
        told("No performance counters of caches here: hits and misses are absent, times only are compared.".to_owned());
    }
    let settings = station.settle();
    let realtime = settings.notes().iter().all(|note| !note.subject.contains("SCHED_FIFO"));
    if !realtime {
        told("No SCHED_FIFO: programs have no turns, so that they are not compared on one CPU, and whatever else runs disturbs them (hint: run as root).".to_owned());
    }
    let conditions = conditions(programs.len(), others.len(), realtime, coloring.is_some());
    ensure!(!conditions.is_empty(), "neither another CPU nor turns\n  hint: run as root, or on more than one CPU");
    let request = InterferenceRequest {
        programs: &programs,
        cpu: station.cpu,
        others: &others,
        turn: options.turn,
        period: options.period,
        warm_up: options.warm_up,
        conditions: &conditions,
        realtime,
        events: &events,
        blocks: options.blocks as usize,
        seed: station.seed,
    };
    let mut placed: Vec<Option<f64>> = vec![None; programs.len()];
    let mut place = |program: usize, pid: Pid| {
        let Some(coloring) = &coloring else { return Ok(()) };
        let tally = coloring.of_another(shares[program].clone(), station.allowed.clone()).place(&[pid])?;
        let share = tally.right as f64 / tally.resident.max(1) as f64;
        placed[program] = Some(placed[program].map_or(share, |least| least.min(share)));
        Ok(())
    };
    let blocks = results::until_quiet(
        "running",
        // Blocks take long: half of those asked for are enough.
        options.blocks.div_ceil(2),
        |round, progress| {
            let request = InterferenceRequest { seed: request.seed.wrapping_add(round), ..request.clone() };
            interference(&request, &mut place, progress)
        },
        |blocks| conclude(blocks).iter().map(|row| row.blocks_quiet).min(),
    )?;
    let mut runs = blocks.iter().flat_map(|block| [&block.alone, &block.control, &block.together]);
    if !events.is_empty() && runs.any(|run| run.counts.is_empty()) {
        told("Runs without hits and misses: they are counted for programs of one thread only.".to_owned());
    }
    drop(lease);
    warnings.extend(station.notes.iter().chain(settings.notes()).map(evidence::told));
    drop(settings);
    let measured = Interference {
        level: coloring.as_ref().map(Coloring::level),
        colors: coloring.as_ref().map(Coloring::color_count),
        programs: programs
            .iter()
            .zip(shares)
            .zip(placed)
            .map(|((words, colors), placed)| Program { command: words.join(" "), colors, placed })
            .collect(),
        beside: others.len().min(programs.len() - 1),
        turn_ns: [options.turn, options.period],
        events: events.iter().map(|event| event.name.to_owned()).collect(),
        rows: conclude(&blocks),
    };
    results::leave(
        &options.results,
        &measured,
        text(&measured),
        station.seed,
        || csv(&blocks, &measured),
        |raw| {
            let mut evidence = evidence::of(&station, None, Vec::new(), raw, warnings);
            evidence.interference = vec![measured.clone()];
            evidence
        },
    )?;
    let conclusive = measured.is_conclusive() && measured.rows.len() == conditions.len() && !interrupt::interrupted();
    Ok(if conclusive { Verdict::Holds } else { Verdict::Inconclusive })
}

/// The workloads as programs: with as many jobs as take the time here that a run is to have.
fn built_in(options: &InterferenceOptions) -> Result<Vec<String>> {
    let time = Duration::from_nanos(options.warm_up.0) * RUN_LENGTH;
    let program = |(kernel, size): (&str, usize)| {
        let jobs = job::jobs_within(kernel, size, time)?;
        Ok(format!("isochrome job --jobs {jobs} {kernel} {size}"))
    };
    WORKLOADS.into_iter().map(program).collect()
}

/// The words of a command line.
fn command(text: &str) -> Result<Vec<String>> {
    ensure!(
        !text.contains(['"', '\'', '\\']),
        "`{text}` holds quotes, which are not read here\n  hint: put the command into a script that ends with exec"
    );
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    ensure!(!words.is_empty(), "a --program without a name");
    Ok(words)
}

/// The palette that tells the colors, all of which are this program's as long as the lease is kept.
fn colored(options: &InterferenceOptions, station: &Station) -> Result<(Coloring, crate::coloring::Lease)> {
    let chosen = ChosenColors {
        colors: Some("all".to_owned()),
        palette: options.palette.clone(),
        level: options.level,
        memory: options.memory,
        ..ChosenColors::default()
    };
    let mut coloring = Coloring::of(&chosen, station.allowed.clone(), station.seed)?;
    let lease = coloring.lease(Owner::of(std::process::id())?)?;
    Ok((coloring, lease))
}

/// `count` colors in equal shares, what is left over to the first.
fn shares(count: u32, programs: usize) -> Result<Vec<Vec<Color>>> {
    let programs = programs as u32;
    ensure!(count >= programs, "{count} colors for {programs} programs\n  hint: fewer programs, or another --level");
    let end = |program: u32| program * count / programs;
    Ok((0..programs)
        .map(|program| (end(program)..end(program + 1)).map(|color| Color(color as u16)).collect())
        .collect())
}

/// Hits and misses of each level that this processor has proved to count, as many as it counts at once.
fn events(station: &Station) -> Vec<Event> {
    let quantities = [Quantity::L1DataRefills, Quantity::FillsFromL2, Quantity::FillsFromL3];
    let last = [Quantity::FillsFromMemory, Quantity::LastLevelLoadMisses];
    let of = |quantity: &Quantity| event(&station.processor, *quantity);
    let known = quantities
        .iter()
        .filter_map(of)
        .chain(miss_events(&station.processor, 2, Touches::Data).next())
        .chain(last.iter().filter_map(of));
    let slots = usable_slots().map_or(0, |slots| slots.usable);
    let counts = |event: &Event| Counters::open(std::slice::from_ref(event)).map(drop);
    known.filter(|event| counts(event).is_ok()).take(slots).collect()
}

/// Every run, one line each; times in ns.
fn csv(blocks: &[Block], measured: &Interference) -> String {
    let mut text = "block,program,sharing,colored,beside,cpu_ns".to_owned();
    for event in &measured.events {
        let _ = write!(text, ",{event}");
    }
    text.push('\n');
    for (at, block) in blocks.iter().enumerate() {
        let condition = block.condition;
        let sharing = if condition.sharing == Sharing::InterCore { "inter_core" } else { "intra_core" };
        let runs = [("nobody", &block.alone), ("spinning", &block.control), ("programs", &block.together)];
        for (beside, run) in runs {
            let _ = write!(
                text,
                "{at},{},{sharing},{},{beside},{}",
                condition.program,
                u8::from(condition.colored),
                run.cpu.0
            );
            for event in 0..measured.events.len() {
                let count = run.counts.get(event).map_or(String::new(), u64::to_string);
                let _ = write!(text, ",{count}");
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_equal_and_leave_nothing() {
        let sizes = |count, programs| shares(count, programs).unwrap().iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(16, 4), [4; 4]);
        assert_eq!(sizes(16, 3).iter().sum::<usize>(), 16);
        assert!(sizes(16, 3).iter().all(|size| (5..=6).contains(size)));
        assert!(shares(2, 3).unwrap_err().to_string().contains("hint"));
    }

    #[test]
    fn a_command_with_quotes_is_refused() {
        assert_eq!(command("sort  -n file").unwrap(), ["sort", "-n", "file"]);
        assert!(command("sh -c 'a b'").is_err() && command(" ").is_err());
    }
}
