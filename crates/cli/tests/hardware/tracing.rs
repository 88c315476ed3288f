//! Tests of recording the memory accesses of a program.

use std::process::Command;

use serde_json::Value;

use crate::fixture::isochrome;
use crate::trial::{NotRun, Outcome};

/// A program without a library that accesses an array in a page of its own: 3000 loads and 2000 stores of 4 bytes.
const PROGRAM: &str = "
__attribute__((section(\".bss.array\"), aligned(4096))) volatile unsigned array[1024];
void _start(void) {
    unsigned i, sum = 0;
    for (i = 0; i < 1000; i++) array[i] = i;
    for (i = 0; i < 1000; i++) array[i] += array[(i * 7) % 1000];
    for (i = 0; i < 1000; i++) sum += array[i];
#if defined __x86_64__
    __asm__ volatile(\"syscall\" : : \"a\"(60), \"D\"(sum & 0) : \"memory\");
#else
    register long number __asm__(\"x8\") = 93; register long code __asm__(\"x0\") = sum & 0;
    __asm__ volatile(\"svc 0\" : : \"r\"(number), \"r\"(code) : \"memory\");
#endif
}
";

pub fn trace(by: &str) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("program.c"), PROGRAM).unwrap();
    let flags = ["-O1", "-fno-tree-vectorize", "-fno-stack-protector", "-static", "-nostdlib", "-no-pie", "-o"];
    let built = Command::new("cc").args(flags).args([path("program"), path("program.c")]).output();
    if !built.is_ok_and(|output| output.status.success()) {
        return Err(NotRun("no C compiler that can link a program without a library".to_owned()));
    }
    let recorded =
        isochrome(&["trace", "--by", by, "--format", "lackey", "-o", &path("trace"), "--", &path("program")]).output();
    let recorded = recorded.expect("the command starts");
    let message = String::from_utf8_lossy(&recorded.stderr).into_owned();
    if message.contains("is not installed") {
        return Err(NotRun(message.lines().next().unwrap_or_default().to_owned()));
    }
    assert!(recorded.status.success(), "{message}");
    let text = std::fs::read_to_string(path("trace")).unwrap();
    let accesses: Vec<(&str, u64, u32)> = text
        .lines()
        .map(|line| {
            let (address, bytes) = line[3..].split_once(',').unwrap();
            (line[..2].trim(), u64::from_str_radix(address, 16).unwrap(), bytes.parse().unwrap())
        })
        .collect();
    // The array fills the page that gets most stores.
    let mut pages: Vec<u64> =
        accesses.iter().filter(|(kind, ..)| *kind == "S").map(|(_, address, _)| address >> 12).collect();
    pages.sort_unstable();
    let array = *pages.chunk_by(|a, b| a == b).max_by_key(|page| page.len()).unwrap().first().unwrap();
    let count = |wanted: &str| {
        accesses
            .iter()
            .filter(|(kind, address, bytes)| *kind == wanted && address >> 12 == array && *bytes == 4)
            .count()
    };
    assert_eq!((count("L"), count("S")), (3000, 2000), "{by}");
    assert!(accesses.iter().filter(|(kind, ..)| *kind == "I").count() > 10_000);
    let counts =
        isochrome(&["simulate", "--json", "--machine", "cortex-a72", "--trace", &path("trace"), "--format", "lackey"])
            .output();
    let counts: Value = serde_json::from_slice(&counts.unwrap().stdout).unwrap();
    assert!(counts["levels"][0]["reads"].as_u64().is_some());
    Ok(())
}
