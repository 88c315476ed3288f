//! The server's socket: one request and one answer per connection, each a line of JSON.
//!
//! Requests are small and answered from what the server knows; none changes anything. A client that is slow, sends too much or sends
//! nonsense is told so, if it still listens, and let go.

use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Status;

/// Version of requests and answers.
pub const VERSION: u32 = 1;
/// Name of the socket in the runtime folder.
const NAME: &str = "serve.sock";
/// Longest request in bytes.
const REQUEST_MAX: u64 = 4096;
/// Longest time that a client may take to send its request, and to take its answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most clients at a time. Others are let go at once.
const CLIENTS_MAX: usize = 32;

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Version of the request: [`VERSION`].
    pub version: u32,
    /// What is asked.
    pub ask: Ask,
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// The state of the server.
    Status,
    /// To which class a process belongs, and why.
    Explain(i32),
    /// The text of the policy in force.
    Policy,
}

/// Answer of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// Version of the answer: [`VERSION`].
    pub version: u32,
    /// What it says.
    pub say: Say,
}

/// What the server says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Say {
    /// The state of the server.
    Status(Status),
    /// Text for people.
    Text(String),
    /// The request cannot be answered, for this reason.
    Error(String),
}

/// Answers requests. It is called in threads of its own.
pub type Answerer = dyn Fn(Ask) -> Say + Send + Sync;

/// Returns the path of the socket in `folder`.
pub fn path_in(folder: &Path) -> PathBuf {
    folder.join(NAME)
}

/// Answers requests at the socket in `folder` by `answerer`, in a thread of its own, as long as this process runs. Everybody may ask.
pub fn listen(folder: &Path, answerer: Arc<Answerer>) -> io::Result<()> {
    let path = path_in(folder);
    // Left by a server that was killed: the caller has made sure that no other one runs.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(0o666))?;
    let clients = Arc::new(AtomicUsize::new(0));
    thread::Builder::new().name("socket".to_owned()).spawn(move || {
        for client in listener.incoming() {
            // Too many open files, say: others may get on.
            let Ok(client) = client else {
                thread::sleep(Duration::from_millis(10));
                continue;
            };
            if clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX {
                clients.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (answerer, of) = (Arc::clone(&answerer), Arc::clone(&clients));
            let spawned = thread::Builder::new().name("client".to_owned()).spawn(move || {
                // A client that has gone needs no answer.
                let _ = attend(client, answerer.as_ref());
                of.fetch_sub(1, Ordering::Relaxed);
            });
            if spawned.is_err() {
                clients.fetch_sub(1, Ordering::Relaxed);
            }
        }
    })?;
    Ok(())
}

/// Reads a request and answers it.
fn attend(client: UnixStream, answerer: &Answerer) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut line = Vec::new();
    BufReader::new((&client).take(REQUEST_MAX)).read_until(b'\n', &mut line)?;
    let mut text = serde_json::to_vec(&answer(&line, answerer))?;
    text.push(b'\n');
    (&client).write_all(&text)
}

/// Returns the answer to the request in `line`.
fn answer(line: &[u8], answerer: &Answerer) -> Answer {
    let say = match serde_json::from_slice::<Request>(line) {
        _ if !line.ends_with(b"\n") => Say::Error(format!("a request is one line of at most {REQUEST_MAX} bytes")),
        Ok(Request { version: VERSION, ask }) => answerer(ask),
        Ok(Request { version, .. }) => Say::Error(format!("version {version} is not spoken here, but {VERSION}")),
        Err(error) => Say::Error(format!("not understood: {error}")),
    };
    Answer { version: VERSION, say }
}

/// Asks the server whose socket is in `folder`.
///
/// Fails with [`io::ErrorKind::NotFound`] or [`io::ErrorKind::ConnectionRefused`] if no server runs.
pub fn ask(folder: &Path, ask: Ask) -> io::Result<Say> {
    let server = UnixStream::connect(path_in(folder))?;
    server.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut request = serde_json::to_vec(&Request { version: VERSION, ask })?;
    request.push(b'\n');
    (&server).write_all(&request)?;
    let mut line = Vec::new();
    BufReader::new(&server).read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice::<Answer>(&line)?.say)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answerer() -> Arc<Answerer> {
        Arc::new(|ask| match ask {
            Ask::Status => Say::Status(Status { level: 2, colors: 16, ..Status::default() }),
            Ask::Explain(pid) => Say::Text(format!("process {pid}")),
            Ask::Policy => Say::Text(String::new()),
        })
    }

    #[test]
    fn a_client_gets_its_answer() {
        let folder = tempfile::tempdir().unwrap();
        listen(folder.path(), answerer()).unwrap();
        assert_eq!(ask(folder.path(), Ask::Explain(7)).unwrap(), Say::Text("process 7".to_owned()));
        assert!(matches!(ask(folder.path(), Ask::Status).unwrap(), Say::Status(Status { colors: 16, .. })));
        let other = tempfile::tempdir().unwrap();
        assert_eq!(ask(other.path(), Ask::Status).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn nonsense_is_answered_with_an_error() {
        let error = |line: &[u8]| match answer(line, answerer().as_ref()).say {
            Say::Error(error) => error,
            say => panic!("{say:?}"),
        };
        assert!(error(b"{\"version\":2,\"ask\":\"status\"}\n").contains("version 2"));
        assert!(error(b"{\"version\":1,\"ask\":\"status\",\"more\":1}\n").contains("not understood"));
        assert!(error(b"{\"version\":1,\"ask\":\"everything\"}\n").contains("not understood"));
        assert!(error(b"\xff\xfe\n").contains("not understood"));
        assert!(error(&vec![b'x'; REQUEST_MAX as usize]).contains("one line"));
        assert!(error(b"").contains("one line"));
    }

    #[test]
    fn clients_that_send_nothing_or_too_much_do_not_keep_others_waiting() {
        let folder = tempfile::tempdir().unwrap();
        listen(folder.path(), answerer()).unwrap();
        let connect = || UnixStream::connect(path_in(folder.path())).unwrap();
        let silent: Vec<UnixStream> = (0..CLIENTS_MAX / 2).map(|_| connect()).collect();
        let mut much = connect();
        // The server reads no more than a request may have, and closes.
        let _ = much.write_all(&vec![b'x'; 1 << 20]);
        assert_eq!(ask(folder.path(), Ask::Explain(1)).unwrap(), Say::Text("process 1".to_owned()));
        drop(silent);
    }
}
