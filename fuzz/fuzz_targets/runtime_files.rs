//! No bytes in the files that isochrome keeps for a boot make it panic: ledger and saved palettes. A ledger that is read can be written and read again.
//!
//! The first byte says which file the rest of the input is. `BOOT` stands for this boot, so that the input is not taken for one of an earlier boot.
#![no_main]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::LazyLock;

use isochrome_host::color::ledger::{self, Ledger, Owner};
use isochrome_host::color::saved::{self, Boot};
use isochrome_host::runtime;
use isochrome_model::palette::Palette;
use libfuzzer_sys::fuzz_target;

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("isochrome-fuzz-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder can be made");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("its mode can be set");
    folder
});

fuzz_target!(|bytes: &[u8]| {
    let Some((which, bytes)) = bytes.split_first() else { return };
    match which % 3 {
        0 => {
            let text = String::from_utf8_lossy(bytes).replace("BOOT", &runtime::boot_id());
            fs::write(FOLDER.join("ledger.json"), text).expect("a file can be written");
            if let Ok(mut ledger) = Ledger::open(&FOLDER) {
                let before = ledger.grants().len();
                ledger.release(&Owner::of(std::process::id()).expect("this process lives")).expect("it can be written");
                assert!(ledger.grants().len() <= before);
            }
            let _ = ledger::grants_in(&FOLDER);
        }
        1 => {
            fs::write(saved::path(&FOLDER, 2), bytes).expect("a file can be written");
            let boot = Boot { fingerprint: "machine".into(), boot_id: "boot".into() };
            let _ = saved::load(&FOLDER, 2, &boot);
        }
        _ => {
            if let Ok(palette) = serde_json::from_slice::<Palette>(bytes) {
                let frames = palette.frames().map(<[_]>::to_vec).unwrap_or_default();
                for frame in frames {
                    palette.color_of(frame);
                }
            }
        }
    }
});
