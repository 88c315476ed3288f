//! Tests of `plan` and `analyze` from the outside: files and standard input in, exit codes and JSON out.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const TABLE_1: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/kim2013-table1.json");

fn isochrome(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isochrome"));
    let mut child =
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that never reads its input may be gone already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn analyze_prints_table_2_of_the_paper() {
    // [Kim2013, Table 2], whose partitions are numbered from 1.
    let sets = [
        ("p_streamcluster", (0..8).collect::<Vec<u32>>()),
        ("p_ferret", vec![0, 1, 2]),
        ("p_canneal", (0..8).collect()),
        ("p_fluidanimate", (3..8).collect()),
    ];
    let tasks: Vec<Value> =
        sets.iter().map(|(name, partitions)| json!({"name": name, "partitions": partitions})).collect();
    let allocation = json!({"cores": [{"cpu": 0, "tasks": tasks}]}).to_string();
    let run = |extra: &[&str]| {
        let arguments = ["analyze", TABLE_1, "--allocation", "-", "--json"];
        isochrome(&[&arguments, extra].concat(), &allocation)
    };
    let output = run(&[]);
    let result = json_of(&output);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!((&result["analysis"], &result["schedulable"]), (&json!("kim2013"), &json!(true)));
    let responses: Vec<_> =
        result["tasks"].as_array().unwrap().iter().map(|task| task["response_ns"].clone()).collect();
    assert_eq!(responses, [12_302_400, 25_724_200, 101_358_600, 273_783_300]);

    // A bound past the deadline is null, and exit code 2 reports that a requirement is violated.
    let late = run(&["--refill", "9ms"]);
    assert_eq!(late.status.code(), Some(2));
    assert_eq!(json_of(&late)["tasks"][3]["response_ns"], Value::Null);
}

#[test]
fn a_plan_is_an_allocation_that_analyze_accepts() {
    let common = ["--cores", "4", "--memory", "1G"];
    let planned = isochrome(&[&["plan", TABLE_1, "--json"], &common[..]].concat(), "");
    assert_eq!(planned.status.code(), Some(0));
    let plan = json_of(&planned);
    assert_eq!((&plan["schedulable"], &plan["gap"], &plan["partitions_used"]), (&json!(true), &json!(0.0), &json!(6)));
    let text = String::from_utf8(planned.stdout).unwrap();
    let analyzed = isochrome(&[&["analyze", TABLE_1, "--allocation", "-", "--json"], &common[..]].concat(), &text);
    assert_eq!(analyzed.status.code(), Some(0), "{}", String::from_utf8_lossy(&analyzed.stderr));
    for core in plan["cores"].as_array().unwrap() {
        for task in core["tasks"].as_array().unwrap() {
            let result = json_of(&analyzed);
            let same = result["tasks"].as_array().unwrap().iter().find(|other| other["name"] == task["name"]).cloned();
            assert_eq!(same.unwrap()["response_ns"], task["response_ns"]);
        }
    }
}

#[test]
fn a_plan_of_the_first_version_is_analyzed_and_exported_with_partitions_from_0() {
    // In the file, task a has partition 2 and task b has 1 and 2: numbers from 1.
    const FIRST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/data/plan-1.json");
    let set = json!({"refill_ns_per_partition": 100, "partitions": 2, "memory_mib": 4, "cores": 1, "tasks": [
        {"name": "a", "period_ns": 10_000, "memory_mib": 1, "wcet_ns": [1000, 1000]},
        {"name": "b", "period_ns": 40_000, "memory_mib": 1, "wcet_ns": [20_000, 8000]}]});
    let analyzed = isochrome(&["analyze", "-", "--allocation", FIRST, "--json"], &set.to_string());
    let tasks = json_of(&analyzed)["tasks"].clone();
    assert_eq!((&tasks[0]["response_ns"], &tasks[1]["response_ns"]), (&json!(1100), &json!(9300)));
    let exported = isochrome(&["export", "palloc", FIRST], "");
    let script = String::from_utf8(exported.stdout).unwrap();
    assert!(script.contains("'1' >") && script.contains("'0-1' >"), "{script}");

    let planned = isochrome(&["plan", "-", "--objective", "utilization"], &set.to_string());
    let text = String::from_utf8(planned.stdout).unwrap();
    assert!(text.starts_with("CPU 0  partitions 0-1  utilization"), "{text}");
}

#[test]
fn a_set_that_cannot_be_scheduled_ends_with_2_and_a_bad_file_with_1() {
    let set = |wcet: u64| {
        let tasks =
            json!([{"name": "a", "period_ns": 100, "wcet_ns": wcet}, {"name": "b", "period_ns": 100, "wcet_ns": wcet}]);
        json!({"refill_ns_per_partition": 1, "partitions": 2, "memory_mib": 4, "cores": 1, "tasks": tasks}).to_string()
    };
    let plan = |text: &str| isochrome(&["plan", "-", "--json"], text);
    assert_eq!(plan(&set(40)).status.code(), Some(0));
    let late = plan(&set(60));
    assert_eq!((late.status.code(), json_of(&late)["schedulable"].clone()), (Some(2), json!(false)));
    let bad = plan(&set(0));
    assert_eq!(bad.status.code(), Some(1));
    let message = String::from_utf8(bad.stderr).unwrap();
    assert!(message.contains("line 1, column ") && message.contains(": tasks[0].wcet_ns"), "{message}");
}

#[test]
fn objectives_decide_one_after_the_other() {
    let machine = ["--cores", "4", "--memory", "1G", "--copies", "2", "--json"];
    let planned = |objective: &str| {
        let output = isochrome(&[&["plan", TABLE_1, "--objective", objective], &machine[..]].concat(), "");
        (output.status.code(), json_of(&output))
    };
    // The memory of 8 tasks needs 12 partitions. The second objective then is the largest refill time with 12 partitions.
    let (code, plan) = planned("partitions,refill");
    assert_eq!((code, &plan["objective"], &plan["partitions_used"]), (Some(0), &json!("partitions"), &json!(12)));
    assert_eq!((&plan["then"][0]["objective"], &plan["then"][0]["gap"].is_number()), (&json!("refill"), &true));
    let largest = plan["then"][0]["value"].as_f64().unwrap();
    assert!(largest > 45_300.0, "{plan}");
    let with = |refill_ns: f64| {
        let refill = format!("{refill_ns}ns");
        let arguments =
            ["plan", TABLE_1, "--partitions", "12", "--refill", &refill, "--cores", "4", "--memory", "384M"];
        isochrome(&[&arguments[..], &["--copies", "2"]].concat(), "").status.code()
    };
    assert_eq!((with(largest), with(largest + 1.0)), (Some(0), Some(2)));
    let refused =
        isochrome(&["plan", TABLE_1, "--objective", "utilization,margin", "--cores", "4", "--memory", "1G"], "");
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8(refused.stderr).unwrap().contains("name utilization last"));
}

#[test]
fn analyze_tells_how_far_its_verdict_carries() {
    let sets = [("p_streamcluster", 0..8), ("p_ferret", 0..3), ("p_canneal", 0..8), ("p_fluidanimate", 3..8)];
    let tasks: Vec<Value> =
        sets.into_iter().map(|(name, set)| json!({"name": name, "partitions": set.collect::<Vec<u32>>()})).collect();
    let one = json!({"cores": [{"cpu": 0, "tasks": tasks}]}).to_string();
    let mut set: Value = serde_json::from_str(&std::fs::read_to_string(TABLE_1).unwrap()).unwrap();
    // The refill time of the paper is 37.6 cycles of a 3.4 GHz clock per line: 4096 lines in 45.3 us. Misses one after the other take longer.
    for (field, value) in [("refill_dirty_ns_per_partition", 60_000), ("lines_per_partition", 4096), ("miss_ns", 60)] {
        set[field] = json!(value);
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, drawing) = (folder.path().join("set.json"), folder.path().join("cores.svg"));
    std::fs::write(&file, set.to_string()).unwrap();
    let (file, drawing) = (file.to_str().unwrap(), drawing.to_str().unwrap());
    let result = json_of(&isochrome(&["analyze", file, "--allocation", "-", "--json", "--refill", "clean"], &one));
    let known: Vec<Value> =
        result["refills"].as_array().unwrap().iter().map(|known| known["refill_ns"].clone()).collect();
    assert_eq!(known, [45_300, 60_000, 245_760]);
    let core = &result["cores"][0];
    let last = core["largest_refill_ns"]["most"].as_u64().unwrap();
    for known in result["refills"].as_array().unwrap() {
        assert_eq!(known["schedulable"].as_bool().unwrap(), known["refill_ns"].as_u64().unwrap() <= last);
    }
    // In Table 2 the response time of the fourth task jumps at a refill time just above 1.09 us.
    let jumps = core["refill_breaks"].as_array().unwrap();
    let jump = jumps.iter().find(|jump| jump["task"] == "p_fluidanimate").unwrap();
    assert!((1_090..1_100).contains(&jump["above_ns"].as_u64().unwrap()), "{jump}");
    assert!(core["fewest_partitions"].as_u64().unwrap() <= 8);

    let on = |name: &str, set: std::ops::Range<u32>| json!({"name": name, "partitions": set.collect::<Vec<u32>>()});
    let first = json!({"cpu": 0, "tasks": [on("p_streamcluster", 0..8), on("p_ferret", 0..3)]});
    let second = json!({"cpu": 1, "tasks": [on("p_canneal", 8..16), on("p_fluidanimate", 11..16)]});
    let two = json!({"cores": [first, second]}).to_string();
    let drawn = isochrome(&["analyze", file, "--allocation", "-", "--svg", drawing], &two);
    assert_eq!(drawn.status.code(), Some(0), "{}", String::from_utf8_lossy(&drawn.stderr));
    let picture = std::fs::read_to_string(drawing).unwrap();
    for text in ["CPU 0", "CPU 1", "p_ferret", "p_canneal"] {
        assert!(picture.contains(text), "{text}");
    }
}

#[test]
fn audsley_finds_priorities_where_those_of_the_deadlines_fail() {
    // With deadline-monotonic priorities b responds after 4 + 3 and its jitter of 6: 13 > 11. With b first, 9 <= 11 and 7 <= 10.
    let set = json!({"refill_ns_per_partition": 1, "partitions": 2, "memory_mib": 4, "cores": 1, "tasks": [
        {"name": "a", "period_ns": 20, "deadline_ns": 10, "wcet_ns": 4},
        {"name": "b", "period_ns": 20, "deadline_ns": 11, "jitter_ns": 6, "wcet_ns": 3}]});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("set.json");
    std::fs::write(&file, set.to_string()).unwrap();
    let allocation = r#"{"cores":[{"cpu":0,"tasks":[{"name":"a","partitions":[0]},{"name":"b","partitions":[1]}]}]}"#;
    let run = |how: &str| {
        isochrome(&["analyze", file.to_str().unwrap(), "--allocation", "-", "--json", "--priorities", how], allocation)
    };
    assert_eq!(run("file").status.code(), Some(2));
    let found = run("audsley");
    assert_eq!(found.status.code(), Some(0));
    let tasks = json_of(&found)["tasks"].clone();
    assert_eq!((&tasks[0]["name"], &tasks[0]["response_ns"]), (&json!("b"), &json!(9)));
    assert_eq!((&tasks[1]["name"], &tasks[1]["response_ns"]), (&json!("a"), &json!(7)));
}

#[test]
fn ten_thousand_tasks_are_analyzed_and_refused_by_the_planner_with_a_reason() {
    let name = |index: usize| format!("t{index}");
    let tasks: Vec<Value> =
        (0..10_000).map(|index| json!({"name": name(index), "period_ns": 1_000_000 + index, "wcet_ns": 50})).collect();
    let set = json!({"refill_ns_per_partition": 1, "partitions": 4, "memory_mib": 4, "cores": 1,
        "cache": "private", "tasks": tasks});
    let refused = isochrome(&["plan", "-"], &set.to_string());
    assert_eq!(refused.status.code(), Some(1));
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(message.contains("10000 tasks are more than the 1024 a plan can place"), "{message}");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("set.json");
    std::fs::write(&file, set.to_string()).unwrap();
    let members: Vec<Value> = (0..10_000).map(|index| json!({"name": name(index), "partitions": [0]})).collect();
    let core = |(cpu, tasks): (usize, &[Value])| json!({"cpu": cpu, "tasks": tasks});
    let cores: Vec<Value> = members.chunks(40).enumerate().map(core).collect();
    let allocation = json!({"cores": cores}).to_string();
    let analyzed = isochrome(&["analyze", file.to_str().unwrap(), "--allocation", "-", "--json"], &allocation);
    let result = json_of(&analyzed);
    assert_eq!((analyzed.status.code(), result["tasks"].as_array().unwrap().len()), (Some(0), 10_000));
    // All tasks of a core share the partition. Each of 40 jobs executes for 50 ns and refills the partition once, and each of the 39 that
    // preempt causes another refill.
    assert_eq!(result["tasks"][9_999]["response_ns"], 40 * 51 + 39);

    // Of 47 tasks on a core two would share a SCHED_FIFO priority, but the bounds assume distinct priorities.
    let allocation = json!({"cores": [{"cpu": 0, "tasks": members[..47]}]}).to_string();
    let refused = isochrome(&["analyze", file.to_str().unwrap(), "--allocation", "-", "--json"], &allocation);
    let message = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(message.contains("47 tasks are more than the 46 a core can run"), "{message}");
}

#[test]
fn a_lock_is_charged_with_the_footprint_of_its_holder_or_refused() {
    // t3 has a cold cache and holds the lock that t2 needs, and t1 preempts t3: a legal schedule takes 19 (crates/model, tests of locks).
    let lock = |longest_ns: u64| json!([{"name": "bus", "longest_ns": longest_ns}]);
    let tasks = |known: bool| {
        let mut tasks = json!([
            {"name": "t1", "period_ns": 20, "wcet_ns": 2},
            {"name": "t2", "period_ns": 100, "wcet_ns": 4},
            {"name": "t3", "period_ns": 200, "wcet_ns": 5},
        ]);
        match known {
            true => (tasks[1]["locks"], tasks[2]["locks"]) = (lock(1), lock(5)),
            false => tasks[1]["blocking_ns"] = 5.into(),
        }
        tasks
    };
    let set = |protocol: &str, known: bool| {
        json!({"refill_ns_per_partition": 3, "partitions": 2, "memory_mib": 1, "cores": 1, "lock_protocol": protocol,
            "tasks": tasks(known)})
        .to_string()
    };
    let on = |name: &str, partition: u32| json!({"name": name, "partitions": [partition]});
    let allocation = json!({"cores": [{"cpu": 0, "tasks": [on("t1", 0), on("t2", 1), on("t3", 0)]}]}).to_string();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("set.json");
    let analyzed = |set: String| {
        std::fs::write(&file, set).unwrap();
        isochrome(&["analyze", file.to_str().unwrap(), "--allocation", "-", "--json"], &allocation)
    };
    for known in [true, false] {
        let result = json_of(&analyzed(set("immediate_ceiling", known)));
        assert_eq!(result["tasks"][1]["response_ns"], 20, "{result}");
    }
    let refused = analyzed(set("inheritance", true));
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("`inheritance` is not one of `immediate_ceiling`"));
}

/// Three tasks that gain more from a second partition than it costs them to share three.
fn sharing_set() -> Value {
    let task = |name: &str| json!({"name": name, "period_ns": 1_000_000, "wcet_ns": [200_000, 50_000, 50_000]});
    let tasks = ["a", "b", "c"].map(task);
    json!({"refill_ns_per_partition": 1_000, "partitions": 3, "memory_mib": 4, "cores": 1, "tasks": tasks})
}

/// Returns a probed machine whose replacement misses these shares of lines where LRU misses all and none; `None` for one that was not tested.
fn machine(shares: Option<(f64, f64)>) -> Value {
    let share = |share: f64| json!({"median": share, "low": share, "high": share});
    let mut level = json!({"level": 2, "holds": "unified",
        "geometry": {"value": {"set_count": 1024, "ways": 8, "line_bytes": 64}, "source": "sysfs"},
        "shared_by": {"value": [[0]], "source": "sysfs"}});
    if let Some((cyclic, reused)) = shares {
        let test = json!({"cpu": 0, "level": 2, "blocks": 24, "cyclic": share(cyclic), "reused": share(reused), "fitting": share(0.0)});
        level["replacement"] = json!({"value": test, "source": "measured"});
    }
    json!({"schema": "isochrome-machine/1", "architecture": "x86_64", "cpu_model": "made up", "cpus": [0], "page_bytes": 4096,
        "levels": [level]})
}

#[test]
fn bounds_that_rest_on_lru_are_inconclusive_where_the_cache_was_measured_not_to_have_it() {
    let folder = tempfile::tempdir().unwrap();
    let written = |name: &str, value: &Value| {
        let path = folder.path().join(name);
        std::fs::write(&path, value.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let set = written("set.json", &sharing_set());
    let random = written("random.json", &machine(Some((0.4, 0.3))));
    let lru = written("lru.json", &machine(Some((1.0, 0.0))));
    let untested = written("untested.json", &machine(None));
    let plan = |more: &[&str]| isochrome(&[&["plan", &set, "--objective", "utilization"], more].concat(), "");
    let errors = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();

    let unsound = plan(&["--machine", &random, "--json"]);
    assert_eq!(unsound.status.code(), Some(3), "{}", errors(&unsound));
    let result = json_of(&unsound);
    assert_eq!((&result["schedulable"], &result["replacement"]), (&json!(true), &json!("lru")));
    assert_eq!(result["contradicted"]["test"]["cyclic"]["median"], 0.4);
    assert!(result["contradicted"]["tasks"].as_array().unwrap().len() >= 2, "{result}");
    assert!(errors(&unsound).contains("hint: --replacement any"), "{}", errors(&unsound));
    let text = String::from_utf8(plan(&["--machine", &random]).stdout).unwrap();
    assert!(text.contains("NOT SOUND: ") && text.contains("if replacement were LRU"), "{text}");

    // A profile says it itself.
    let mut profile = sharing_set();
    profile["replacement_test"] = machine(Some((0.4, 0.3)))["levels"][0]["replacement"]["value"].clone();
    let profile = written("profile.json", &profile);
    let of_profile = |more: &[&str]| {
        isochrome(&[&["plan", profile.as_str(), "--objective", "utilization"], more].concat(), "").status.code()
    };
    assert_eq!(of_profile(&[]), Some(3));
    // A machine file without such a measurement, or with one that passed, does not acquit it.
    assert_eq!([&untested, &lru].map(|file| of_profile(&["--machine", file])), [Some(3), Some(3)]);

    for more in [&["--machine", lru.as_str()][..], &["--machine", &untested], &[]] {
        let output = plan(&[more, &["--json"]].concat());
        assert_eq!((output.status.code(), json_of(&output).get("contradicted")), (Some(0), None), "{more:?}");
        assert_eq!(
            errors(&output).contains("no measurement of the replacement policy"),
            more.contains(&untested.as_str())
        );
    }

    let apart = plan(&["--machine", &random, "--replacement", "any", "--json"]);
    let result = json_of(&apart);
    assert_eq!((apart.status.code(), result.get("contradicted")), (Some(0), None), "{}", errors(&apart));
    assert_eq!(result["replacement"], "any");
    let tasks = result["cores"][0]["tasks"].as_array().unwrap();
    let mut used: Vec<u64> =
        tasks.iter().flat_map(|task| task["partitions"].as_array().unwrap()).map(|it| it.as_u64().unwrap()).collect();
    used.sort_unstable();
    assert_eq!(used, [0, 1, 2]);
}

#[test]
fn analyze_gives_tasks_that_share_no_bound_if_any_policy_may_replace() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let set = file("set.json", &sharing_set().to_string());
    let random = file("random.json", &machine(Some((0.4, 0.3))).to_string());
    let on = |name: &str, partitions: &[u32]| json!({"name": name, "partitions": partitions});
    let analyzed = |c: &[u32], more: &[&str]| {
        let allocation =
            json!({"cores": [{"cpu": 0, "tasks": [on("a", &[0]), on("b", &[1]), on("c", c)]}]}).to_string();
        isochrome(&[&["analyze", &set, "--allocation", "-"], more].concat(), &allocation)
    };
    let any = ["--replacement", "any", "--machine", &random];
    let shared = analyzed(&[1, 2], &[&any[..], &["--json"]].concat());
    let result = json_of(&shared);
    assert_eq!((shared.status.code(), &result["without_bound"]), (Some(2), &json!(["b", "c"])));
    let responses: Vec<bool> =
        result["tasks"].as_array().unwrap().iter().map(|task| task["response_ns"].is_u64()).collect();
    assert_eq!(responses, [true, false, false]);
    let text = String::from_utf8(analyzed(&[1, 2], &any).stdout).unwrap();
    assert!(text.contains("no bound for b, c and the tasks that they delay: they share partitions"), "{text}");
    assert!(text.contains("would repair it: 3 partitions for the core, allocated anew"), "{text}");
    assert_eq!(analyzed(&[2], &any).status.code(), Some(0));

    // By the same measurement bounds that assume LRU are inconclusive, where they charge refills.
    let lru = ["--machine", &random, "--json"];
    let contradicted = analyzed(&[1, 2], &lru);
    assert_eq!(contradicted.status.code(), Some(3));
    assert_eq!(json_of(&contradicted)["contradicted"]["tasks"], json!(["b", "c"]));
    assert_eq!(analyzed(&[2], &lru).status.code(), Some(0));
}

/// Returns a task set of one task, with C = 40 and D = T = 100, on a CPU of which at most `withheld_ns` are withheld of any 200 ns.
fn with_supply(withheld_ns: u64) -> String {
    let steps = json!([
        {"window_ns": 20, "withheld_ns": 20, "interruptions": 1},
        {"window_ns": 200, "withheld_ns": withheld_ns, "interruptions": 2},
    ]);
    let value = json!({"cpu": 0, "watched_ns": 3_800_000_000u64, "threshold_ns": 5000, "steps": steps});
    let supply = json!([{"source": "measured", "value": value}]);
    let tasks = json!([{"name": "a", "period_ns": 100, "wcet_ns": 40}]);
    json!({"refill_ns_per_partition": 1, "partitions": 1, "memory_mib": 4, "cores": 1, "supply": supply, "tasks": tasks})
        .to_string()
}

/// Returns what was printed as one line.
fn unbroken(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_plan_charges_the_measured_supply_and_says_so() {
    let plan = |extra: &[&str]| isochrome(&[&["plan", "-"], extra].concat(), &with_supply(30));
    // R = 40 + 30 + 3: the CPU is withheld twice, and was before, and each time the only partition is refilled.
    let planned = plan(&["--json"]);
    let result = json_of(&planned);
    let task = |result: &Value| result["cores"][0]["tasks"][0]["response_ns"].clone();
    assert_eq!((planned.status.code(), task(&result)), (Some(0), json!(73)));
    assert_eq!((&result["supply"]["source"], &result["supply"]["cpus"]), (&json!("measured"), &json!([0])));
    // A run replays the recurrence with the steal time that it sees, so the supply is not in it.
    assert!(!result["cores"][0]["recurrence"].to_string().contains("withheld"), "{result}");
    let text = unbroken(&plan(&["--supply", "measured"]));
    let says = "charges the supply of CPU 0, observed for 3.8 s each in gaps of more than 5 us";
    assert!(text.contains(says) && text.contains("not bounds on the time that a hypervisor"), "{text}");

    let full = plan(&["--json", "--supply", "full"]);
    let warning = String::from_utf8_lossy(&full.stderr).into_owned();
    assert_eq!((full.status.code(), task(&json_of(&full)), json_of(&full).get("supply")), (Some(0), json!(40), None));
    assert!(warning.contains("hold only while no CPU is withheld"), "{warning}");

    let allocation = result.to_string();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("set.json");
    std::fs::write(&file, with_supply(30)).unwrap();
    let analyze = ["analyze", file.to_str().unwrap(), "--allocation", "-"];
    let analyzed = json_of(&isochrome(&[&analyze[..], &["--json"]].concat(), &allocation));
    assert_eq!((&analyzed["tasks"][0]["response_ns"], &analyzed["tasks"][0]["withheld_ns"]), (&json!(73), &json!(33)));
    let text = unbroken(&isochrome(&analyze, &allocation));
    assert!(text.contains("CRPD withheld") && text.contains(says), "{text}");
    let text = unbroken(&isochrome(&[&analyze[..], &["--supply", "full"]].concat(), &allocation));
    assert!(text.contains("no withheld CPU: bounds hold only for"), "{text}");
}

#[test]
fn where_the_supply_is_the_reason_for_a_missed_deadline_plan_and_analyze_say_so() {
    let planned = isochrome(&["plan", "-", "--json"], &with_supply(70));
    let message = String::from_utf8_lossy(&planned.stderr).into_owned();
    assert_eq!(planned.status.code(), Some(2));
    assert!(message.contains("the supply of the CPUs is the reason") && message.contains("--supply full"), "{message}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("set.json");
    std::fs::write(&file, with_supply(70)).unwrap();
    let allocation = json!({"cores": [{"cpu": 0, "tasks": [{"name": "a", "partitions": [0]}]}]}).to_string();
    let analyzed = isochrome(&["analyze", file.to_str().unwrap(), "--allocation", "-"], &allocation);
    let message = String::from_utf8_lossy(&analyzed.stderr).into_owned();
    assert_eq!(analyzed.status.code(), Some(2));
    assert!(message.contains("the supply of the CPUs is the reason"), "{message}");
    // Without a supply in the file, nothing can be charged.
    let missing = isochrome(&["plan", TABLE_1, "--supply", "measured", "--cores", "4", "--memory", "1G"], "");
    let message = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert_eq!(missing.status.code(), Some(1));
    assert!(message.contains("supply: is missing") && message.contains("isochrome probe"), "{message}");
}
