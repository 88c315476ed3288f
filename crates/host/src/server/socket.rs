//! The server's socket: one request and one answer per connection, each a line of JSON.
//!
//! Requests are small. The kernel identifies the client ([Linux, unix(7), SO_PEERCRED]), and all but [`Ask::Join`], [`Ask::Place`] and
//! [`Ask::Reload`] only read. A client that is slow, sends too much or sends nonsense gets an error, if it still reads, and is disconnected.

use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Status;
use super::places::Placing;
use super::requests::{Join, Peer};
use crate::error::SystemError;
use crate::runtime;

/// Version of requests and answers.
pub const VERSION: u32 = 1;
/// Name of the socket in the runtime folder.
const NAME: &str = "serve.sock";
/// Longest request in bytes.
const REQUEST_MAX: u64 = 4096;
/// Longest time that a client may take to send its request, and to take its answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most clients at a time. Further clients are disconnected at once, and ask again.
const CLIENTS_MAX: usize = 32;
/// Longest time for which a disconnected client repeats its request, and the pause between two attempts.
const ASKING: Duration = Duration::from_secs(5);
const BETWEEN: Duration = Duration::from_millis(50);

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Version of the request: [`VERSION`].
    pub version: u32,
    /// The question.
    pub ask: Ask,
}

/// Question of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// The state of the server.
    Status,
    /// The state of the server, and its number. If the number is still this one, the answer comes when the state has changed, or after 1 s. The
    /// first state has the number 1.
    Next(u64),
    /// The class to which a process belongs, and the reason.
    Explain(i32),
    /// The text of the policy in force.
    Policy,
    /// Put a process or control group into a class.
    Join(Join),
    /// Keep a part of a process's memory on some of its colors.
    Place(Placing),
    /// Read the policy again and put it in force; for root and the server's own user.
    Reload,
}

/// Answer of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// Version of the answer: [`VERSION`].
    pub version: u32,
    /// Content of the answer.
    pub say: Say,
}

/// Content of an answer of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Say {
    /// The state of the server.
    Status(Status),
    /// The state of the server, and its number.
    Changed(u64, Status),
    /// Text for people.
    Text(String),
    /// The request cannot be answered, for this reason.
    Error(String),
}

/// Answers requests of a peer. It is called in threads of its own.
pub type Answerer = dyn Fn(Ask, Peer) -> Say + Send + Sync;

/// Returns the path of the socket in `folder`.
pub fn path_in(folder: &Path) -> PathBuf {
    folder.join(NAME)
}

/// Returns the folder of the server to ask: this user's own where a server has run there, else the machine's.
///
/// Fails as [`runtime::machines`] does.
fn folder() -> Result<PathBuf, SystemError> {
    let own = runtime::folder();
    let of_machine = if path_in(&own).exists() { None } else { runtime::machines()? };
    Ok(of_machine.unwrap_or(own))
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
    let peer = socket_peercred(&client)?;
    let peer = Peer { pid: peer.pid.as_raw_nonzero().get(), uid: peer.uid.as_raw() };
    let mut line = Vec::new();
    BufReader::new((&client).take(REQUEST_MAX)).read_until(b'\n', &mut line)?;
    let mut text = serde_json::to_vec(&answer(&line, peer, answerer))?;
    text.push(b'\n');
    (&client).write_all(&text)
}

/// Returns the answer to the request in `line`, which `peer` has sent.
pub fn answer(line: &[u8], peer: Peer, answerer: &Answerer) -> Answer {
    let say = match serde_json::from_slice::<Request>(line) {
        _ if !line.ends_with(b"\n") => Say::Error(format!("a request is one line of at most {REQUEST_MAX} bytes")),
        Ok(Request { version: VERSION, ask }) => answerer(ask, peer),
        Ok(Request { version, .. }) => Say::Error(format!("version {version} is not supported, only {VERSION}")),
        Err(error) => Say::Error(format!("not understood: {error}")),
    };
    Answer { version: VERSION, say }
}

/// Error of a request to the server.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No server runs.
    #[error("no server runs\n  hint: isochrome serve --config FILE")]
    NoServer,
    /// The server refuses the request for this reason.
    #[error("{0}")]
    Refused(String),
    /// The server cannot be reached, or its answer cannot be read.
    #[error("the server does not answer: {0}")]
    NoAnswer(#[source] io::Error),
    /// The folder of the machine's server cannot be trusted.
    #[error("{0}")]
    System(#[from] SystemError),
}

/// Sends a request to the server that runs, this user's own or else the machine's, and returns the answer.
pub fn ask_server(what: Ask) -> Result<Say, AskError> {
    match ask(&folder()?, what) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            Err(AskError::NoServer)
        }
        Err(error) => Err(AskError::NoAnswer(error)),
        Ok(Say::Error(reason)) => Err(AskError::Refused(reason)),
        Ok(say) => Ok(say),
    }
}

/// Sends a request to the server whose socket is in `folder`, and returns the answer. If the server has too many clients, the request is repeated for
/// 5 s.
///
/// Fails with [`io::ErrorKind::NotFound`] or [`io::ErrorKind::ConnectionRefused`] if no server runs, and with
/// [`io::ErrorKind::ResourceBusy`] if the server has too many clients all the time.
pub fn ask(folder: &Path, ask: Ask) -> io::Result<Say> {
    let mut request = serde_json::to_vec(&Request { version: VERSION, ask })?;
    request.push(b'\n');
    let begin = Instant::now();
    loop {
        let line = match ask_once(folder, &request) {
            // Which error a closed connection gives depends on whether the client was still writing.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                Vec::new()
            }
            line => line?,
        };
        if !line.is_empty() {
            return Ok(serde_json::from_slice::<Answer>(&line)?.say);
        }
        if begin.elapsed() > ASKING {
            let why = format!("it has more than {CLIENTS_MAX} clients at a time\n  hint: try again");
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
        }
        thread::sleep(BETWEEN);
    }
}

/// Returns the line that the server answers to `request`; nothing if it closes the connection.
fn ask_once(folder: &Path, request: &[u8]) -> io::Result<Vec<u8>> {
    let server = UnixStream::connect(path_in(folder))?;
    server.set_read_timeout(Some(Duration::from_secs(10)))?;
    (&server).write_all(request)?;
    let mut line = Vec::new();
    BufReader::new(&server).read_until(b'\n', &mut line)?;
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::requests::Destination;

    fn answerer() -> Arc<Answerer> {
        Arc::new(|ask, peer| match ask {
            Ask::Status => Say::Status(Status { level: 2, colors: 16, ..Status::default() }),
            Ask::Next(number) => Say::Changed(number + 1, Status::default()),
            Ask::Explain(pid) => Say::Text(format!("process {pid}")),
            Ask::Policy => Say::Text(String::new()),
            Ask::Join(_) | Ask::Place(_) => Say::Text(format!("{} of {}", peer.pid, peer.uid)),
            Ask::Reload => Say::Error("no".to_owned()),
        })
    }

    #[test]
    fn a_client_gets_its_answer() {
        let folder = tempfile::tempdir().unwrap();
        listen(folder.path(), answerer()).unwrap();
        assert_eq!(ask(folder.path(), Ask::Explain(7)).unwrap(), Say::Text("process 7".to_owned()));
        assert!(matches!(ask(folder.path(), Ask::Status).unwrap(), Say::Status(Status { colors: 16, .. })));
        let join = Join { into: Destination::Class("a".to_owned()), pid: None, group: false, colors: None };
        let own = (std::process::id(), rustix::process::getuid().as_raw());
        assert_eq!(ask(folder.path(), Ask::Join(join)).unwrap(), Say::Text(format!("{} of {}", own.0, own.1)));
        let other = tempfile::tempdir().unwrap();
        assert_eq!(ask(other.path(), Ask::Status).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn nonsense_is_answered_with_an_error() {
        let error = |line: &[u8]| match answer(line, Peer { pid: 1, uid: 0 }, answerer().as_ref()).say {
            Say::Error(error) => error,
            say => panic!("{say:?}"),
        };
        assert!(error(b"{\"version\":2,\"ask\":\"status\"}\n").contains("version 2"));
        assert!(error(b"{\"version\":1,\"ask\":\"status\",\"more\":1}\n").contains("not understood"));
        assert!(error(b"{\"version\":1,\"ask\":\"everything\"}\n").contains("not understood"));
        assert!(error(b"{\"version\":1,\"ask\":{\"join\":{\"class\":\"a\"}}}\n").contains("not understood"));
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
        // Those who come while there are too many ask again until the silent ones have been let go.
        let more: Vec<UnixStream> = (0..CLIENTS_MAX).map(|_| connect()).collect();
        assert_eq!(ask(folder.path(), Ask::Explain(2)).unwrap(), Say::Text("process 2".to_owned()));
        drop((silent, more));
    }
}
