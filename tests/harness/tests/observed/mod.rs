//! The control server's answers.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use faultline_harness::testbed::LONG;

/// The control server's answer to a request, with its head.
pub fn exchange(socket: &Path, method: &str, path: &str, body: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The body of the answer to a request, which must succeed.
#[track_caller]
pub fn request(socket: &Path, method: &str, path: &str, body: &str) -> String {
    let answer = exchange(socket, method, path, body);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 20"), "{path}: {answer}");
    assert!(!head.to_lowercase().contains("chunked"), "{head}");
    body.to_owned()
}
