//! A prober that sends requests to a server on this machine at a fixed rate, and times the responses.
//!
//! A response is timed from the moment at which its request was sent. If the request had to wait for the previous response, the moment at which it
//! was due counts instead. So a slow response does not hide the delay of later requests, and a late timer of the prober does not count.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::str::FromStr;
use std::time::{Duration, Instant};

use super::{MayGoOn, Measure, Reading, Trouble, sleep};

/// Time after which the prober gives up a response.
const PATIENCE: Duration = Duration::from_secs(1);
/// Number of bytes that are sent to be echoed.
const ECHOED: usize = 32;
/// Most bytes of a response that are read.
const RESPONSE_MAX: usize = 16 << 20;

/// Protocol of the requests, which determines the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A connection is opened and closed.
    Connect,
    /// Some bytes are sent, and the server has to send the same bytes back.
    Echo,
    /// `PING` is sent by the protocol of Redis, and the server has to answer with a line.
    Ping,
    /// A file is requested by HTTP/1.1, and the server has to send all of it.
    Http,
}

/// A server on this machine, and the request to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Protocol of the requests.
    pub protocol: Protocol,
    /// Address of the server.
    pub address: SocketAddr,
    /// Path of the file that is requested by HTTP.
    pub path: String,
}

impl FromStr for Target {
    type Err = String;

    /// Parses `connect:127.0.0.1:80`, `echo:...`, `ping:...` or `http:127.0.0.1:80/path`.
    fn from_str(text: &str) -> Result<Target, String> {
        let hint =
            "write connect:, echo:, ping: (Redis) or http: and an address of this machine, as in ping:127.0.0.1:6379";
        let (protocol, rest) = text.split_once(':').ok_or(hint)?;
        let protocol = match protocol {
            "connect" => Protocol::Connect,
            "echo" => Protocol::Echo,
            "ping" => Protocol::Ping,
            "http" => Protocol::Http,
            _ => return Err(hint.to_owned()),
        };
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (address, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        let address = address.strip_prefix("localhost:").map_or(address.to_owned(), |port| format!("127.0.0.1:{port}"));
        let address: SocketAddr = address.parse().map_err(|_| hint)?;
        if !address.ip().is_loopback() {
            return Err(format!("{address} is not on this machine: the time of the network would be measured as well"));
        }
        Ok(Target { protocol, address, path: path.to_owned() })
    }
}

/// The prober.
pub struct Socket {
    target: Target,
    /// Time between two requests.
    period: Duration,
    /// Time after which a response is given up.
    patience: Duration,
    connection: Option<TcpStream>,
}

impl Socket {
    /// Returns a prober that sends `rate` requests per second.
    pub fn new(target: Target, rate: f64) -> Socket {
        Socket { target, period: Duration::from_secs_f64(1.0 / rate), patience: PATIENCE, connection: None }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let connection = TcpStream::connect_timeout(&self.target.address, self.patience)?;
        connection.set_nodelay(true)?;
        connection.set_read_timeout(Some(self.patience))?;
        connection.set_write_timeout(Some(self.patience))?;
        Ok(connection)
    }

    /// Sends a request and waits for its response. A server may close a connection between two requests.
    fn request(&mut self) -> io::Result<()> {
        if self.target.protocol == Protocol::Connect {
            return self.connect().map(drop);
        }
        if let Some(connection) = &mut self.connection
            && ask(connection, &self.target).is_ok()
        {
            return Ok(());
        }
        let mut connection = self.connect()?;
        ask(&mut connection, &self.target)?;
        self.connection = Some(connection);
        Ok(())
    }
}

/// Sends a request on `connection` and reads the response.
fn ask(connection: &mut TcpStream, target: &Target) -> io::Result<()> {
    match target.protocol {
        Protocol::Connect => Ok(()),
        Protocol::Echo => {
            let sent = [b'e'; ECHOED];
            connection.write_all(&sent)?;
            let mut back = [0; ECHOED];
            connection.read_exact(&mut back)?;
            if back == sent { Ok(()) } else { Err(io::Error::other("other bytes than were sent came back")) }
        }
        Protocol::Ping => {
            connection.write_all(b"*1\r\n$4\r\nPING\r\n")?;
            read_until(connection, |response| response.ends_with(b"\r\n")).map(drop)
        }
        Protocol::Http => {
            let Target { address, path, .. } = target;
            // In one piece: a server may answer and close after the first.
            let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: isochrome\r\n\r\n");
            connection.write_all(request.as_bytes())?;
            let response = read_until(connection, is_whole)?;
            let status = response.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
            match status.first() {
                Some(b'2' | b'3') => Ok(()),
                _ => Err(io::Error::other(format!("the server answered {}", String::from_utf8_lossy(status)))),
            }
        }
    }
}

/// Reads until `is_whole` holds for everything that was read.
fn read_until(connection: &mut TcpStream, is_whole: impl Fn(&[u8]) -> bool) -> io::Result<Vec<u8>> {
    let (mut response, mut bytes) = (Vec::new(), [0; 16 << 10]);
    while !is_whole(&response) {
        match connection.read(&mut bytes)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ if response.len() > RESPONSE_MAX => return Err(io::Error::other("the response has no end")),
            length => response.extend_from_slice(&bytes[..length]),
        }
    }
    Ok(response)
}

/// Whether a response by HTTP has come whole: by its length, or by the last of its chunks.
fn is_whole(response: &[u8]) -> bool {
    let Some(end) = response.windows(4).position(|four| four == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&response[..end]).to_ascii_lowercase();
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let body = &response[end + 4..];
    match (field("content-length:").and_then(|length| length.parse().ok()), field("transfer-encoding:")) {
        (Some(length), _) => body.len() >= length,
        (None, Some("chunked")) => body.ends_with(b"0\r\n\r\n"),
        // Without a length the response ends with the connection, which is not waited for.
        (None, _) => true,
    }
}

impl Measure for Socket {
    fn unit(&self) -> &str {
        "µs"
    }

    fn window(&mut self, length: Duration, may_go_on: &mut MayGoOn<'_>) -> Result<Reading, Trouble> {
        let begin = Instant::now();
        let (mut due, mut free) = (begin, begin);
        let mut times = Vec::new();
        while due < begin + length {
            sleep(due.saturating_duration_since(Instant::now()), may_go_on)?;
            let sent = if free > due { due } else { Instant::now() };
            self.request().map_err(|error| {
                self.connection = None;
                Trouble::Failed(format!("{}: {error}", self.target.address))
            })?;
            free = Instant::now();
            times.push((free - sent).as_secs_f64() * 1e6);
            due += self.period;
        }
        Ok(Reading::Values(times))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Starts a server that answers each connection by `serve`, and returns its address.
    fn server(serve: impl Fn(TcpStream) + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || listener.incoming().flatten().for_each(&serve));
        address
    }

    fn values(protocol: &str, address: SocketAddr) -> Result<Vec<f64>, Trouble> {
        let target: Target = format!("{protocol}:{address}").parse().unwrap();
        let mut socket = Socket { patience: Duration::from_secs(60), ..Socket::new(target, 200.0) };
        match socket.window(Duration::from_millis(100), &mut || true)? {
            Reading::Values(values) => Ok(values),
            Reading::Statistic(_) => panic!("the prober computes no statistic"),
        }
    }

    #[test]
    fn each_request_at_the_fixed_rate_gets_one_time() {
        let echo = server(|mut stream| drop(io::copy(&mut stream.try_clone().unwrap(), &mut stream)));
        // 200 per second for a tenth of a second.
        assert_eq!(values("echo", echo).unwrap().len(), 20);
        assert_eq!(values("connect", echo).unwrap().len(), 20);
        let ping = server(|mut stream| {
            let mut bytes = [0; 64];
            while stream.read(&mut bytes).is_ok_and(|length| length > 0) {
                let _ = stream.write_all(b"+PONG\r\n");
            }
        });
        assert_eq!(values("ping", ping).unwrap().len(), 20);
        // This one closes the connection after each response.
        let http = server(|mut stream| {
            let mut bytes = [0; 1024];
            let _ = stream.read(&mut bytes);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        });
        assert_eq!(values("http", http).unwrap().len(), 20);
    }

    #[test]
    fn requests_that_wait_for_a_slow_response_are_timed_from_when_they_were_due() {
        let slow = server(|mut stream| {
            let mut bytes = [0; ECHOED];
            while stream.read_exact(&mut bytes).is_ok() {
                std::thread::sleep(Duration::from_millis(10));
                let _ = stream.write_all(&bytes);
            }
        });
        let times = values("echo", slow).unwrap();
        // Due every 5 ms, answered every 10 ms: each waits 5 ms longer than the one before, 100 ms and more at the end.
        assert!(times.len() == 20 && times[19] > 95_000.0, "{times:?}");
    }

    #[test]
    fn a_server_that_refuses_or_answers_wrongly_is_a_failed_window() {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(matches!(values("ping", closed), Err(Trouble::Failed(why)) if why.contains("refused")));
        let not_found = server(|mut stream| {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        });
        assert!(matches!(values("http", not_found), Err(Trouble::Failed(why)) if why.contains("404")));
    }

    #[test]
    fn only_servers_on_this_machine_are_asked() {
        let target = |text: &str| text.parse::<Target>();
        assert_eq!(target("http://127.0.0.1:80/a/b").unwrap().path, "/a/b");
        assert_eq!(target("ping:localhost:6379").unwrap().address, "127.0.0.1:6379".parse().unwrap());
        assert!(target("ping:[::1]:6379").is_ok());
        assert!(target("ping:192.0.2.1:6379").unwrap_err().contains("not on this machine"));
        assert!(target("127.0.0.1:80").is_err() && target("ping:6379").is_err());
    }

    #[test]
    fn a_response_is_whole_by_its_length_or_its_last_chunk() {
        assert!(!is_whole(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"));
        assert!(is_whole(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"));
        assert!(!is_whole(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"));
        assert!(is_whole(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"));
        assert!(!is_whole(b"HTTP/1.1 200 OK\r\n"));
    }
}
