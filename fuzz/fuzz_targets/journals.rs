//! No bytes in the journals and records that a killed command leaves make the command that finds them panic, and undoing settings writes nothing but settings.
//!
//! The first byte says which file the rest of the input is. `BOOT` stands for this boot, so that the input is not taken for one of an earlier boot.
#![no_main]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use isochrome_host::color::reference::Reference;
use isochrome_host::color::saved::Boot;
use isochrome_host::doctor::Changes;
use isochrome_host::machine::sysfs::Sysfs;
use isochrome_host::partition::resctrl::{self, Mounted};
use isochrome_host::process::Pid;
use isochrome_host::recolor;
use isochrome_host::run::shielding::CpuShield;
use isochrome_host::runtime;
use isochrome_host::server::requests::Requests;
use isochrome_model::policy::read;
use libfuzzer_sys::fuzz_target;

/// A process that cannot be: numbers end at 2^22.
const NOBODY: Pid = Pid(i32::MAX);

/// A machine with a setting and its runtime folder, and files that are not settings.
static MACHINE: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("isochrome-fuzz-{}", std::process::id()));
    for part in ["runtime", "proc/sys/vm", "sys", "etc/sysctl.d", "resctrl/isochrome-a"] {
        fs::create_dir_all(folder.join(part)).expect("a folder can be made");
    }
    fs::set_permissions(folder.join("runtime"), fs::Permissions::from_mode(0o700)).expect("its mode can be set");
    // SAFETY: nothing else runs yet.
    unsafe { std::env::set_var("ISOCHROME_RUNTIME_DIR", folder.join("runtime")) };
    folder
});

fn put(file: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = MACHINE.join(file);
    fs::write(&path, bytes).expect("a file can be written");
    path
}

/// Undoes the settings that the journal or the drop-in says were made.
fn undo(file: &str, bytes: &[u8]) {
    let (setting, other, mine) = ("proc/sys/vm/compaction_proactiveness", "etc/passwd", put(file, bytes));
    put(setting, "0\n");
    put(other, "root\n");
    let runtime = MACHINE.join("runtime");
    if let Ok(mut changes) = Changes::lock(&Sysfs::at(&MACHINE), &runtime) {
        changes.is_empty();
        let _ = changes.undo();
    }
    assert_eq!(fs::read_to_string(MACHINE.join(other)).expect("it is still there"), "root\n");
    for file in [mine, runtime.join("doctor.json")] {
        let _ = fs::remove_file(file);
    }
}

fn with_boot(bytes: &[u8]) -> Vec<u8> {
    String::from_utf8(bytes.to_vec()).map_or_else(|_| bytes.to_vec(), |text| text.replace("BOOT", &runtime::boot_id()).into_bytes())
}

fuzz_target!(|bytes: &[u8]| {
    let Some((which, bytes)) = bytes.split_first() else { return };
    let (bytes, folder): (_, &Path) = (with_boot(bytes), &MACHINE.join("runtime"));
    match which.wrapping_sub(b'0') % 7 {
        0 => undo("runtime/doctor.json", &bytes),
        1 => undo("etc/sysctl.d/60-isochrome.conf", &bytes),
        2 => {
            put("resctrl/schemata", "L3:0=fff\n");
            put("runtime/resctrl.json", &bytes);
            let mut tree = Mounted::at(&MACHINE.join("resctrl")).expect("it looks mounted");
            let _ = resctrl::repair(&mut tree, folder);
        }
        3 => {
            put("runtime/requests.json", &bytes);
            let policy = read("[class.control]\ncolors = 4\nclients = [\"*\"]\n").expect("a policy");
            if let Ok(requests) = Requests::open(folder) {
                requests.added_to(&policy);
            }
        }
        4 => {
            let path = put("runtime/run-1.json", &bytes);
            // What is not restored is not changed: no CPU is wanted.
            if let Ok(shield) = CpuShield::new(folder, &[], false) {
                std::mem::forget(shield);
            }
            let _ = fs::remove_file(path);
        }
        5 => {
            put("runtime/reference-l2", &bytes);
            let boot = Boot { fingerprint: "machine".into(), boot_id: runtime::boot_id() };
            if let Ok(reference) = Reference::load(folder, 2, &boot) {
                reference.colors();
            }
        }
        _ => {
            let path = put(&format!("runtime/recolor-{}.json", NOBODY.0), &bytes);
            // The process has ended, so nothing is left to repair and the journal goes.
            assert!(recolor::repair(NOBODY).is_err() || !path.exists());
        }
    }
});
