//! Machine code of loops with a miss ratio.

use std::process::Command;

use isochrome_model::miss_ratio::{INSTRUCTIONS_MAX, Processor, Visit, machine_code};

/// Returns an executable file that calls the machine code `code` at offset `entry` with the argument `passes`. Its exit code is 42 plus the
/// number of passes that the code returns as left.
fn arm_program(code: &[u8], entry: u32, passes: u32) -> Vec<u8> {
    // From the ELF specification: a header of 64 bytes, a program header of 56, then the caller; the code begins with the second page.
    const ADDRESS: u64 = 0x40_0000;
    const CALLER: u64 = 0x80;
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
    file.resize(16, 0);
    file.extend([2u16, 183].map(u16::to_le_bytes).concat());
    file.extend(1u32.to_le_bytes());
    file.extend([ADDRESS + CALLER, 64, 0].map(u64::to_le_bytes).concat());
    file.extend(0u32.to_le_bytes());
    file.extend([64u16, 56, 1, 0, 0, 0].map(u16::to_le_bytes).concat());
    let size = (ARM_CODE - ADDRESS) + code.len() as u64;
    file.extend([1u32, 5].map(u32::to_le_bytes).concat());
    file.extend([0, ADDRESS, ADDRESS, size, size, 4096].map(u64::to_le_bytes).concat());
    file.resize(CALLER as usize, 0);
    let call_at = ADDRESS + CALLER + 4;
    let distance = ((ARM_CODE + u64::from(entry) - call_at) / 4) as u32;
    // mov x0, passes; bl entry; add x0, x0, #42; mov x8, #93 (exit); svc #0
    let caller = [0xd280_0000 | passes << 5, 0x9400_0000 | distance, 0x9100_a800, 0xd280_0ba8, 0xd400_0001];
    file.extend(caller.map(u32::to_le_bytes).concat());
    file.resize((ARM_CODE - ADDRESS) as usize, 0);
    file.extend(code);
    file
}

const ARM_CODE: u64 = 0x40_1000;

/// QEMU logs the address of every instruction that it executes.
pub fn the_machine_code_for_arm_visits_every_line_in_order_in_every_pass() {
    const PASSES: u32 = 3;
    let mut rng = fastrand::Rng::with_seed(7);
    let mut visits: Vec<Visit> =
        (0..1024).map(|line| Visit { offset: 64 * line, instructions: 1 + line % INSTRUCTIONS_MAX as u32 }).collect();
    rng.shuffle(&mut visits);
    let code = machine_code(Processor::Arm, 64 << 10, &visits);

    let folder = tempfile::tempdir().unwrap();
    let [program, log] = ["loop", "log"].map(|name| folder.path().join(name));
    std::fs::write(&program, arm_program(&code, visits[0].offset, PASSES)).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut qemu = Command::new("qemu-aarch64");
    // This option makes every instruction a block of its own. It has an older and a newer name.
    let help = String::from_utf8(Command::new("qemu-aarch64").arg("-h").output().unwrap().stdout).unwrap();
    qemu.arg(if help.contains("-one-insn-per-tb") { "-one-insn-per-tb" } else { "-singlestep" });
    let status = qemu.args(["-d", "exec,nochain", "-D"]).arg(&log).arg(&program).status().unwrap();
    assert_eq!(status.code(), Some(42), "the loop returns when no pass is left");

    // Form of a line: Trace 0: 0x7f... [flags/address/flags/flags]
    let log = std::fs::read_to_string(log).unwrap();
    let address = |line: &str| u64::from_str_radix(line.strip_prefix("Trace ")?.split('/').nth(1)?, 16).ok();
    let executed: Vec<u64> = log.lines().filter_map(address).filter(|address| *address >= ARM_CODE).collect();
    let mut expected = Vec::new();
    for pass in 1..=PASSES {
        for (i, visit) in visits.iter().enumerate() {
            // The last visit ends with a subtraction, a branch over the jump, and the jump to the first visit. In the last pass the branch is
            // taken to the return after the jump.
            let count = u64::from(visit.instructions) + if i + 1 == visits.len() { 2 } else { 0 };
            let begin = ARM_CODE + u64::from(visit.offset);
            expected.extend((0..count).map(|instruction| begin + 4 * instruction));
            if pass == PASSES && i + 1 == visits.len() {
                *expected.last_mut().unwrap() += 4;
            }
        }
    }
    let differs = executed.iter().zip(&expected).position(|(executed, expected)| executed != expected);
    assert!(executed == expected, "{} of {} instructions, first other: {differs:?}", executed.len(), expected.len());
}
