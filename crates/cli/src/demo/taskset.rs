//! `isochrome demo taskset`: takes the robot's task set from its sources to the evidence of a run.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use isochrome_host::interrupt;
use isochrome_host::machine::setting::allowed_cpus;

use crate::args::{Arguments, DemoTasksetOptions, Verb};
use crate::files;
use crate::verdict::Verdict;

macro_rules! sources {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!("../../../../examples/robot/", $name)))),*]
    };
}

/// The task set and its programs.
const SOURCES: [(&str, &str); 7] =
    sources!["taskset.toml", "robot.h", "filters.c", "features.c", "graph.c", "spectrum.c", "hog.c"];

/// Line of the task set that names its CPUs.
const CPUS: &str = "cpus = \"1\"";

/// Carries out all steps of the demonstration in the folder `options.output`, each by an ordinary command line, whose verb `carry_out` carries
/// out. `@` stands for the folder in these command lines.
///
/// The colors are measured again even if some are saved, because saved colors become wrong when the host moves frames. The colors of 2 GiB are
/// enough: the programs need 16 times less, and measuring all memory of a large machine would take minutes. With `--exceed 1e-2` the profile
/// needs 299 jobs at each point.
pub fn run_all(options: &DemoTasksetOptions, carry_out: fn(Verb) -> Result<Verdict>) -> Result<Verdict> {
    let begin = Instant::now();
    let DemoTasksetOptions { output: folder, duration, margin, seed } = options;
    files::make_folder(folder)?;
    build(folder)?;
    let seed = seed.map_or(String::new(), |seed| format!(" --seed {seed}"));
    let steps = [
        ("the colors of this machine's memory", format!("palette --save --level 2 --memory 2G{seed}")),
        (
            "execution times",
            format!(
                "profile @/taskset.toml --again --exceed 1e-2 --jobs-per-run 300 --margin {margin} -o @/profile.json --svg @/profile.svg{seed}"
            ),
        ),
        (
            "a plan",
            "plan @/profile.json --objective utilization --time-limit 10s -o @/plan.json --svg @/plan.svg --gantt @/schedule.svg".to_owned(),
        ),
        ("all together", format!("run @/plan.json --compare none --duration {}ns -o @/run{seed}", duration.0)),
    ];
    let mut verdict = Verdict::Holds;
    for (number, (what, command)) in steps.iter().enumerate() {
        let shown = command.replace('@', &folder.display().to_string());
        eprintln!("\n[{:3.0} s] {what}: isochrome {shown}", begin.elapsed().as_secs_f64());
        let words = command.split(' ').map(|word| match word.strip_prefix("@/") {
            Some(name) => folder.join(name).into_os_string(),
            None => OsString::from(word),
        });
        verdict = carry_out(Arguments::of(std::iter::once("isochrome".into()).chain(words))?.verb)?;
        // The first step may fail: colors that cannot be saved now are measured by the steps that need them.
        if number > 0 && !matches!(verdict, Verdict::Holds) || interrupt::interrupted() {
            break;
        }
    }
    eprintln!("\n[{:3.0} s] all results are in {}", begin.elapsed().as_secs_f64(), folder.display());
    Ok(verdict)
}

/// Writes the sources into `folder`, adapted to a CPU that this machine has, and compiles them.
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
