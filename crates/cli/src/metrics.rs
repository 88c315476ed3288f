//! Metrics for Prometheus, at an address of this machine.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Answers every request at `address` with the text in `page`, until the process ends.
pub fn publish(address: SocketAddr, page: &Arc<Mutex<String>>) -> Result<()> {
    let listener = TcpListener::bind(address)
        .with_context(|| format!("{address}: cannot listen\n  hint: another port, such as 127.0.0.1:9187"))?;
    eprintln!("metrics at http://{}/metrics", listener.local_addr()?);
    let page = Arc::clone(page);
    std::thread::Builder::new().name("metrics".to_owned()).spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that sends no request in time gets no response, so that other clients do not wait for it.
            let answer = |mut stream: TcpStream| -> io::Result<()> {
                stream.set_read_timeout(Some(Duration::from_secs(1)))?;
                stream.set_write_timeout(Some(Duration::from_secs(1)))?;
                // Every request gets the same response.
                let mut request = [0; 4096];
                let _ = stream.read(&mut request)?;
                let text = page.lock().unwrap_or_else(PoisonError::into_inner).clone();
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
                    text.len()
                )
            };
            let _ = answer(stream);
        }
    })?;
    Ok(())
}
