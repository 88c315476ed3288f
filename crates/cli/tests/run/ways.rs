//! Tests of cache ways for tasks, and for everybody else.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use isochrome_host::machine::sysfs::Sysfs;
use isochrome_model::machine::{Fact, Refill, Source};
use isochrome_model::units::{CpuId, Ns};
use serde_json::{Value, json};

use crate::fixture::{Fixture, json_of, wait_until};
use crate::kernel::State;
use crate::trial::Outcome;

pub fn ways(fixture: &Fixture) -> Outcome {
    let (tree, id) = (fixture.resctrl()?, fixture.instance()?);
    let fast = fixture.task("fast", &["line", "50"], 1000, 900, "line");
    let plan = fixture.plan("ways", vec![fast, fixture.good()]);
    let options = ["--duration", "1500ms", "--share-cpus"];
    let mut run = fixture.run(&plan, &options);
    let run = run.env("ISOCHROME_RESCTRL", tree.root()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Each program joins its group before it begins.
    wait_until("ways for both", || tree.state().tasks.len() == 2 && fixture.programs().len() == 2);
    let groups = tree.state().groups.clone();
    let mut tasks: Vec<String> = tree.state().tasks.values().flatten().cloned().collect();
    tasks.sort();
    // Every program has one thread.
    assert_eq!(tasks, fixture.programs());
    let here = |group: &str| groups[group][id];
    assert_eq!((here(""), here("isochrome-1"), here("isochrome-2")), (0xff00, 0xf, 0xf0));
    let output = run.wait_with_output().unwrap();
    let run = json_of(&output)["sections"][0]["numbers"].clone();
    assert_eq!((run["failures"].clone(), run["method"].clone()), (json!([]), json!("ways")));
    let setting =
        run["settings"].as_array().unwrap().iter().find(|one| one["name"].as_str().unwrap().starts_with("ways"));
    let setting = setting.expect("a setting");
    assert_eq!(setting["before"], setting["after"]);
    assert!(setting["during"].as_str().unwrap().contains(&format!("others {id}=ff00, group 1: {id}=f")), "{setting}");
    assert_eq!(tree.state().groups, State::new(2).groups);
    assert!(!fixture.path("runtime/resctrl.json").exists());
    // Only the partitioned side of a comparison has ways.
    tree.state().written.clear();
    let compare = ["--duration", "500ms", "--share-cpus", "--compare", "none"];
    let output = fixture.run(&plan, &compare).env("ISOCHROME_RESCTRL", tree.root()).output().unwrap();
    assert_eq!(json_of(&output)["sections"][0]["numbers"]["comparison"]["blocks"], json!(2));
    let given = tree.state().written.iter().filter(|line| line.starts_with("isochrome-1 ")).count();
    assert_eq!(given, 2);
    Ok(())
}

pub fn ways_and_colors(fixture: &Fixture) -> Outcome {
    let (tree, id) = (fixture.resctrl()?, fixture.instance()?);
    let palette = fixture.path("bits.json");
    fs::write(&palette, r#"{"schema":"isochrome-palette/1","level":2,"colors":16,"rule":"bits"}"#).unwrap();
    let plan = fixture.plan("both", vec![fixture.good(), fixture.task("other", &["line", "50"], 2000, 1900, "line")]);
    let options = [
        "--duration",
        "500ms",
        "--share-cpus",
        "--memory",
        "1G",
        "--trust-palette",
        "--palette",
        palette.to_str().unwrap(),
    ];
    let output = fixture.run(&plan, &options).env("ISOCHROME_RESCTRL", tree.root()).output().unwrap();
    let run = &json_of(&output)["sections"][0]["numbers"];
    assert_eq!(run["failures"], json!([]));
    for (task, first) in run["tasks"].as_array().unwrap().iter().zip([0, 4]) {
        assert_eq!(task["placement"]["colors"], json!([first, first + 1, first + 2, first + 3]));
    }
    // Everybody else has a quarter of the 16 ways.
    let written = tree.state().written.clone();
    assert_eq!(written[..2], [format!(" L2:{id}=f000"), format!("isochrome-tasks L2:{id}=fff")]);
    assert_eq!(tree.state().groups, State::new(2).groups);
    Ok(())
}

pub fn profile_by_ways(fixture: &Fixture) -> Outcome {
    let (tree, id) = (fixture.resctrl()?, fixture.instance()?);
    // Ways come in pairs: the smallest mask has two, and everybody else keeps two.
    tree.state().least = 2;
    let mut machine = Sysfs::system().machine().unwrap().0;
    let refill = Refill { clean_ns: Ns(1000), dirty_ns: Ns(2000), lines: 64 };
    for level in &mut machine.levels {
        level.refill = Some(Fact { value: refill, source: Source::Measured });
    }
    let level = machine.data_level_of(2, CpuId(fixture.cpu as u32)).unwrap().geometry.value;
    let colors = level.color_count(machine.page_bytes);
    fs::write(fixture.path("machine.json"), serde_json::to_vec(&machine).unwrap()).unwrap();
    let text = format!(
        "cpus = \"{}\"\nmethod = \"ways\"\n[[tasks]]\nname = \"good\"\ncommand = \"./task line 50\"\nperiod = \"2ms\"\njobs = \"line\"\n",
        fixture.cpu
    );
    fs::write(fixture.path("taskset.toml"), text).unwrap();
    let mut command = fixture.tool(&["profile", "--json", "--exceed", "0.2", "--jobs-per-run", "14", "--flat", "1000"]);
    command
        .args(["--machine", "machine.json", "-o", "profile.json", "taskset.toml"])
        .current_dir(fixture.folder.path());
    let output = command.env("ISOCHROME_RESCTRL", tree.root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let profile: Value = serde_json::from_str(&fs::read_to_string(fixture.path("profile.json")).unwrap()).unwrap();
    // There are eight pairs. The refill time of a pair is an eighth of that of the cache.
    assert_eq!((profile["partitions"].clone(), profile["method"].clone()), (json!(7), json!("ways")));
    assert_eq!(profile["refill_ns_per_partition"], json!((1000 * colors).div_ceil(8)));
    let measured = profile["tasks"][0]["measured"].as_array().unwrap();
    assert_eq!(measured.iter().map(|point| &point["partitions"]).collect::<Vec<_>>(), [&json!(1), &json!(7)]);
    let written: Vec<String> = tree.state().written.clone();
    let masks = |mask: &str| written.contains(&format!("isochrome-tasks L2:{id}={mask}"));
    assert!(masks("3") && masks("3fff"), "{written:?}");
    assert_eq!(tree.state().groups, State::new(2).groups);
    let plan = fixture.tool(&["plan", "profile.json", "--json"]).current_dir(fixture.folder.path()).output().unwrap();
    assert_eq!(json_of(&plan)["programs"]["method"], json!("ways"), "{}", String::from_utf8_lossy(&plan.stderr));
    Ok(())
}

pub fn no_ways(fixture: &Fixture) -> Outcome {
    let tree = fixture.resctrl()?;
    fixture.instance()?;
    let plan = fixture.plan("ways", vec![fixture.good(), fixture.task("other", &["line", "50"], 2000, 1900, "line")]);
    let refused = |root: &Path, named: &[&str]| {
        let output = fixture.run(&plan, &["--share-cpus"]).env("ISOCHROME_RESCTRL", root).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(named.iter().all(|named| stderr.contains(named)) && stderr.contains("hint:"), "{stderr}");
        assert_eq!(fixture.traces(), Vec::<String>::new());
    };
    refused(&fixture.path("nowhere"), &["mount -t resctrl"]);
    // Classes of service exist, but others use them.
    for number in 0..14 {
        tree.state().make(&format!("theirs-{number}")).unwrap();
    }
    let before = tree.state().groups.clone();
    refused(tree.root(), &["making group isochrome-2", "Out of CLOSIDs"]);
    assert_eq!(tree.state().groups, before);
    tree.state().classes = 2;
    refused(tree.root(), &["3 different sets of ways are needed"]);
    tree.state().classes = 32;
    tree.state().least = 3;
    refused(tree.root(), &["16 ways are not a multiple of 5 partitions"]);
    tree.state().least = 1;
    // An exclusive group of another tool has the ways that the default group should get.
    let mut state = tree.state();
    state.exclusive = Some("theirs-0".to_owned());
    state.groups.insert("theirs-0".to_owned(), [0xff00; 2]);
    state.groups.insert(String::new(), [0xff; 2]);
    drop(state);
    let before = tree.state().groups.clone();
    refused(tree.root(), &["writing L2:", "Overlaps with exclusive group"]);
    assert_eq!(tree.state().groups, before);
    assert!(!fixture.path("runtime/resctrl.json").exists());
    Ok(())
}

pub fn busy_ways(fixture: &Fixture) -> Outcome {
    let tree = fixture.resctrl()?;
    fixture.instance()?;
    let plan = fixture.plan("ways", vec![fixture.good()]);
    let mut run = fixture.run(&plan, &["--duration", "1s", "--share-cpus"]);
    let run = run.env("ISOCHROME_RESCTRL", tree.root()).stdout(Stdio::piped()).spawn().unwrap();
    wait_until("ways", || !tree.state().tasks.is_empty());
    tree.state().busy = Some("isochrome-1".to_owned());
    let evidence = json_of(&run.wait_with_output().unwrap());
    assert!(evidence["warnings"].to_string().contains("removing group isochrome-1"), "{}", evidence["warnings"]);
    assert!(evidence["sections"][0]["numbers"]["tasks"][0]["jobs"].as_u64().unwrap() > 0);
    tree.state().busy = None;
    assert!(fixture.tool(&["ps"]).env("ISOCHROME_RESCTRL", tree.root()).status().unwrap().success());
    assert_eq!(tree.state().groups, State::new(2).groups);
    Ok(())
}

pub fn ways_after_sigkill(fixture: &Fixture) -> Outcome {
    let tree = fixture.resctrl()?;
    fixture.instance()?;
    let plan = fixture.plan("ways", vec![fixture.good()]);
    let mut run = fixture.run(&plan, &["--duration", "60s", "--share-cpus"]);
    let mut run = run.env("ISOCHROME_RESCTRL", tree.root()).stdout(Stdio::null()).spawn().unwrap();
    wait_until("ways", || !tree.state().tasks.is_empty());
    let next = || fixture.tool(&["ps"]).env("ISOCHROME_RESCTRL", tree.root()).output().unwrap();
    let stderr_of = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    // The groups of a run that is alive are left alone.
    assert_eq!(stderr_of(&next()), "");
    assert_eq!(tree.state().names(), ["isochrome-1"]);
    run.kill().unwrap();
    run.wait().unwrap();
    tree.state().busy = Some("isochrome-1".to_owned());
    let busy = stderr_of(&next());
    assert!(busy.contains("removing group isochrome-1") && busy.contains("hint:"), "{busy}");
    assert_eq!(tree.state().names(), ["isochrome-1"]);
    tree.state().busy = None;
    let restored = stderr_of(&next());
    assert!(restored.contains("all have all cache ways"), "{restored}");
    assert_eq!(tree.state().groups, State::new(2).groups);
    wait_until("nothing left", || fixture.traces().is_empty());
    Ok(())
}
