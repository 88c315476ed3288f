//! `isochrome demo taskset`: the robot's task set from its sources to the evidence of a run.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use isochrome_host::interrupt;
use isochrome_host::setting::allowed_cpus;
use isochrome_model::plan::Objective;
use isochrome_model::units::{Bytes, Ns};

use crate::Verdict;
use crate::args::{
    CompareWith, DemoTasksetOptions, ModeledOptions, PaletteOptions, Place, PlanOptions, Policy, ProfileOptions,
    RunPlanOptions, TaskSetFile, ViolationAction,
};
use crate::{files, palette, plan, profile, run};

macro_rules! sources {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!("../../../../examples/robot/", $name)))),*]
    };
}

/// The task set and its programs.
const SOURCES: [(&str, &str); 7] =
    sources!["taskset.toml", "robot.h", "filters.c", "features.c", "graph.c", "spectrum.c", "hog.c"];

/// CPUs as the task set has them.
const CPUS: &str = "cpus = \"1\"";

/// What is asked of the profile here: 299 jobs of each point.
const EXCEED: f64 = 1e-2;

/// Memory whose colors are measured: the programs need 16 times less, and all of a large machine's would take minutes.
const MEMORY: Bytes = Bytes(2 << 30);

/// Does it all in `options.output`.
pub fn run_all(options: &DemoTasksetOptions) -> Result<Verdict> {
    let begin = Instant::now();
    let folder = &options.output;
    let shown = folder.display();
    fs::create_dir_all(folder)
        .with_context(|| format!("{shown}: cannot create\n  hint: choose another folder with -o"))?;
    let tasks = folder.join("taskset.toml");
    build(folder)?;
    let step = |what: &str| eprintln!("\n[{:3.0} s] {what}", begin.elapsed().as_secs_f64());
    // Anew even where one is saved: it goes stale as the host moves frames, and takes seconds.
    step("the colors of this machine's memory: isochrome palette --save");
    palette::run(&PaletteOptions {
        place: place(options),
        pages: None,
        save: true,
        verify: false,
        again: Vec::new(),
        json: false,
        output: None,
        samples: None,
        replay: None,
    })?;
    let (profiled, planned) = (folder.join("profile.json"), folder.join("plan.json"));
    step("execution times: isochrome profile taskset.toml -o profile.json --svg profile.svg");
    let complete = profile::run(&ProfileOptions {
        trust_palette: false,
        tasks,
        output: profiled.clone(),
        again: true,
        exceed: EXCEED,
        visit: 300,
        margin: options.margin,
        flat: 5.0,
        partitions: None,
        machine: None,
        palette: None,
        memory: None,
        modeled: ModeledOptions { from_trace: None, trace: Vec::new(), mhz: None },
        seed: options.seed,
        svg: Some(folder.join("profile.svg")),
        json: false,
    })?;
    if !matches!(complete, Verdict::Holds) || interrupt::interrupted() {
        return Ok(complete);
    }
    step(
        "a plan: isochrome plan profile.json --objective utilization -o plan.json --svg plan.svg --gantt schedule.svg",
    );
    let schedulable = plan::plan(&PlanOptions {
        file: TaskSetFile {
            tasks: profiled,
            analysis: Default::default(),
            cores: None,
            partitions: None,
            memory: None,
            refill: None,
        },
        method: Default::default(),
        objective: vec![Objective::Utilization],
        time_limit: Ns(10_000_000_000),
        copies: 1,
        compare: false,
        json: false,
        output: Some(planned.clone()),
        svg: Some(folder.join("plan.svg")),
        gantt: Some(folder.join("schedule.svg")),
    })?;
    if !matches!(schedulable, Verdict::Holds) || interrupt::interrupted() {
        return Ok(schedulable);
    }
    step("all together: isochrome run plan.json --compare none -o run");
    let verdict = run::run(&RunPlanOptions {
        trust_palette: false,
        plan: planned,
        output: folder.join("run"),
        duration: options.duration,
        hyperperiods: None,
        compare: Some(CompareWith::None),
        on_violation: ViolationAction::Trace,
        keep_going: false,
        share_cpus: false,
        no_mlock: false,
        policy: Policy::Fifo,
        palette: None,
        memory: None,
        seed: options.seed,
        json: false,
    })?;
    step(&format!("all of it is in {shown}"));
    Ok(verdict)
}

fn place(options: &DemoTasksetOptions) -> Place {
    Place { cpu: None, level: Some(2), by: crate::args::By::Auto, memory: Some(MEMORY), seed: options.seed }
}

/// Writes the sources, with the CPU that there is, and compiles them.
fn build(folder: &Path) -> Result<()> {
    let cpu = allowed_cpus()?.last().copied().context("this process may run on no CPU")?;
    for (name, text) in SOURCES {
        files::write(&folder.join(name), &text.replace(CPUS, &format!("cpus = \"{}\"", cpu.0)))?;
    }
    for (name, _) in SOURCES {
        let Some(program) = name.strip_suffix(".c") else { continue };
        let status = Command::new("cc")
            .args(["-std=c11", "-O2", "-static", "-o", program, name, "-lm"])
            .current_dir(folder)
            .status()
            .context("cc: cannot be started\n  hint: a C compiler is needed: apt-get install -y gcc libc6-dev")?;
        ensure!(status.success(), "{name}: cannot be compiled\n  hint: apt-get install -y gcc libc6-dev");
    }
    Ok(())
}
