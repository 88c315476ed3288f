//! Ctrl-C and SIGTERM: the first signal asks the program to finish, the second one ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::SystemError;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static FINISHING: AtomicBool = AtomicBool::new(false);

/// Handles SIGINT and SIGTERM from now on. The first signal sets [`interrupted`]; the next one ends the process with 128 + its number (130
/// for Ctrl-C), as a shell reports it. Settings of threads end with the process.
///
/// The program must call this once.
pub fn install() -> Result<(), SystemError> {
    for signal in [SIGINT, SIGTERM] {
        let failed = |source| SystemError::Signal { signal, source };
        // The order matters: the handler that ends the process must find the flag clear at the first signal.
        flag::register_conditional_shutdown(signal, 128 + signal, &INTERRUPTED).map_err(failed)?;
        flag::register(signal, &INTERRUPTED).map_err(failed)?;
    }
    Ok(())
}

/// Whether a signal has asked this program to finish.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed) && !FINISHING.load(Ordering::Relaxed)
}

/// Returns a flag that every SIGHUP sets from now on. The signal asks a server to read its configuration again.
pub fn on_hangup() -> Result<Arc<AtomicBool>, SystemError> {
    let hung_up = Arc::new(AtomicBool::new(false));
    flag::register(SIGHUP, Arc::clone(&hung_up)).map_err(|source| SystemError::Signal { signal: SIGHUP, source })?;
    Ok(hung_up)
}

/// Lets work that must be done at the end, such as putting programs back, run in spite of a signal: until the returned value is dropped,
/// [`interrupted`] is false. A second signal ends the process nevertheless.
pub fn finish() -> Finishing {
    FINISHING.store(true, Ordering::Relaxed);
    Finishing
}

/// Guard of work that must be done at the end; see [`finish`].
pub struct Finishing;

impl Drop for Finishing {
    fn drop(&mut self) {
        FINISHING.store(false, Ordering::Relaxed);
    }
}
