//! One HTTP/1.1 exchange on a connection: what etcd's JSON gateway needs of HTTP and no more.
//!
//! Guarantees: an answer's head is at most [`HEAD_BYTES_MAX`] and its body at most [`BODY_BYTES_MAX`]; whatever comes, the
//! parser ends in an answer or an error. Must never: reuse a connection on which something unexpected was seen.

use glowfs_rt::Stream;
use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};

/// The greatest head of an answer, in bytes.
pub const HEAD_BYTES_MAX: usize = 16 << 10;
/// The greatest body of an answer, in bytes.
pub const BODY_BYTES_MAX: usize = 16 << 20;
/// Header fields of one answer.
const FIELDS_MAX: usize = 64;
/// The greatest line of a chunk's size, and of a trailer, in bytes.
const LINE_BYTES_MAX: usize = 4 << 10;
/// Bytes asked for by one read.
const READ_BYTES: usize = 64 << 10;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub code: u16,
    /// The body.
    pub body: Vec<u8>,
    /// Whether the connection can take another request.
    pub keep: bool,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bad {
    /// The other end does not speak HTTP as we need it.
    Form(&'static str),
    /// The answer is over [`BODY_BYTES_MAX`].
    TooLarge,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    /// So many bytes of the body are to come.
    Body(usize),
    ChunkSize,
    Chunk(usize),
    /// The line end after a chunk.
    ChunkEnd,
    Trailers,
    Done,
}

/// Reads an answer from the pieces in which it arrives.
pub struct Parser {
    buffer: Vec<u8>,
    /// What of `buffer` is not read yet begins here.
    at: usize,
    state: State,
    answer: Answer,
    trailer_bytes: usize,
}

impl Default for Parser {
    fn default() -> Self {
        let answer = Answer { code: 0, body: Vec::new(), keep: false };
        Self { buffer: Vec::new(), at: 0, state: State::Head, answer, trailer_bytes: 0 }
    }
}

impl Parser {
    /// Takes the next bytes; the answer, once it is complete.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Option<Answer>, Bad> {
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.extend_from_slice(bytes);
        while self.state != State::Done {
            if !self.step()? {
                return Ok(None);
            }
        }
        if self.at < self.buffer.len() {
            return Err(Bad::Form("bytes after the answer"));
        }
        let empty = Answer { code: 0, body: Vec::new(), keep: false };
        Ok(Some(std::mem::replace(&mut self.answer, empty)))
    }

    fn rest(&self) -> &[u8] {
        self.buffer.get(self.at..).unwrap_or(&[])
    }

    /// One step; false if it needs more bytes.
    fn step(&mut self) -> Result<bool, Bad> {
        match self.state {
            State::Head => self.head(),
            State::Body(left) => {
                let left = self.take(left);
                self.state = if left == 0 { State::Done } else { State::Body(left) };
                Ok(left == 0)
            }
            State::ChunkSize => self.chunk_size(),
            State::Chunk(left) => {
                let left = self.take(left);
                self.state = if left == 0 { State::ChunkEnd } else { State::Chunk(left) };
                Ok(left == 0)
            }
            State::ChunkEnd => match self.line()? {
                None => Ok(false),
                Some(0) => {
                    self.state = State::ChunkSize;
                    Ok(true)
                }
                Some(_) => Err(Bad::Form("a chunk is longer than its size")),
            },
            State::Trailers => match self.line()? {
                None => Ok(false),
                Some(0) => {
                    self.state = State::Done;
                    Ok(true)
                }
                Some(len) => {
                    self.trailer_bytes += len;
                    if self.trailer_bytes > HEAD_BYTES_MAX {
                        return Err(Bad::Form("too many trailers"));
                    }
                    Ok(true)
                }
            },
            State::Done => Ok(true),
        }
    }

    /// Moves up to `left` bytes into the body; how many are still to come.
    fn take(&mut self, left: usize) -> usize {
        let n = left.min(self.buffer.len() - self.at);
        self.answer.body.extend_from_slice(&self.buffer[self.at..self.at + n]);
        self.at += n;
        left - n
    }

    /// Skips a line; its length without the line end, or `None` if it is not complete.
    fn line(&mut self) -> Result<Option<usize>, Bad> {
        let rest = self.rest();
        match rest.iter().position(|b| *b == b'\n') {
            Some(end) if end > 0 && rest.get(end - 1) == Some(&b'\r') => {
                self.at += end + 1;
                Ok(Some(end - 1))
            }
            Some(_) => Err(Bad::Form("a line does not end as it should")),
            None if rest.len() > LINE_BYTES_MAX => Err(Bad::Form("a line is too long")),
            None => Ok(None),
        }
    }

    fn head(&mut self) -> Result<bool, Bad> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        let parsed = response.parse(self.buffer.get(self.at..).unwrap_or(&[]));
        let len = match parsed {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) if self.buffer.len() > HEAD_BYTES_MAX => {
                return Err(Bad::Form("the head is too long"));
            }
            Ok(httparse::Status::Partial) => return Ok(false),
            Err(_) => return Err(Bad::Form("this is not HTTP")),
        };
        let code = response.code.unwrap_or(0);
        if code < 200 {
            return Err(Bad::Form("an interim answer"));
        }
        let mut keep = response.version == Some(1);
        let (mut length, mut chunked) = (None, false);
        for field in response.headers.iter() {
            let value = std::str::from_utf8(field.value).unwrap_or("").trim();
            if field.name.eq_ignore_ascii_case("content-length") {
                let n = value.parse::<usize>().map_err(|_| Bad::Form("a bad content-length"))?;
                if length.replace(n).is_some_and(|before| before != n) {
                    return Err(Bad::Form("two lengths"));
                }
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
                if !value.eq_ignore_ascii_case("chunked") {
                    return Err(Bad::Form("an unknown transfer encoding"));
                }
                chunked = true;
            } else if field.name.eq_ignore_ascii_case("connection")
                && value.eq_ignore_ascii_case("close")
            {
                keep = false;
            }
        }
        self.state = match (length, chunked) {
            (Some(_), true) => return Err(Bad::Form("a length and chunks")),
            (None, false) => return Err(Bad::Form("an answer without a length")),
            (None, true) => State::ChunkSize,
            (Some(n), false) if n > BODY_BYTES_MAX => return Err(Bad::TooLarge),
            (Some(n), false) => State::Body(n),
        };
        self.answer.code = code;
        self.answer.keep = keep;
        self.at += len;
        Ok(true)
    }

    fn chunk_size(&mut self) -> Result<bool, Bad> {
        match httparse::parse_chunk_size(self.rest()) {
            Ok(httparse::Status::Complete((len, size))) => {
                self.at += len;
                let size = usize::try_from(size).map_err(|_| Bad::TooLarge)?;
                if size > BODY_BYTES_MAX - self.answer.body.len() {
                    return Err(Bad::TooLarge);
                }
                self.state = if size == 0 { State::Trailers } else { State::Chunk(size) };
                Ok(true)
            }
            Ok(httparse::Status::Partial) if self.rest().len() > LINE_BYTES_MAX => {
                Err(Bad::Form("a line is too long"))
            }
            Ok(httparse::Status::Partial) => Ok(false),
            Err(_) => Err(Bad::Form("a bad chunk size")),
        }
    }
}

/// Sends a POST and reads its answer. `sent` is called before the first byte leaves: from then on the request may have an effect.
pub async fn post(
    stream: &Stream,
    host: &str,
    path: &str,
    body: &str,
    sent: impl FnOnce(),
) -> io::Result<Result<Answer, Bad>> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    sent();
    let (mut head, mut body) = (head.as_bytes(), body.as_bytes());
    while !head.is_empty() || !body.is_empty() {
        let parts = [IoSlice::new(head), IoSlice::new(body)];
        let n = poll_fn(|cx| stream.poll_write(cx, &parts, &[])).await?;
        if n == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let of_head = n.min(head.len());
        head = head.get(of_head..).unwrap_or(&[]);
        body = body.get(n - of_head..).unwrap_or(&[]);
    }
    let mut parser = Parser::default();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let n = poll_fn(|cx| stream.poll_read(cx, &mut [IoSliceMut::new(&mut buffer)])).await?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match parser.push(buffer.get(..n).unwrap_or(&[])) {
            Ok(None) => {}
            Ok(Some(answer)) => return Ok(Ok(answer)),
            Err(bad) => return Ok(Err(bad)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: a\r\nContent-Length: 5\r\n\r\nhello";
    const CHUNKED: &[u8] =
        b"HTTP/1.1 400 Bad Request\r\nTrailer: X\r\nTransfer-Encoding: chunked\r\n\r\n\
        3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nX: y\r\n\r\n";

    fn answer(code: u16) -> Answer {
        Answer { code, body: b"hello".to_vec(), keep: true }
    }

    fn whole(bytes: &[u8]) -> Result<Option<Answer>, Bad> {
        Parser::default().push(bytes)
    }

    /// What bytes that arrive in these pieces are; none, if they are refused.
    fn in_pieces(pieces: &[impl AsRef<[u8]>]) -> Option<Option<Answer>> {
        let (mut p, mut answer) = (Parser::default(), None);
        for piece in pieces.iter().map(AsRef::as_ref).filter(|p| !p.is_empty()) {
            if answer.is_some() {
                // Bytes after the answer.
                return None;
            }
            answer = p.push(piece).ok()?;
        }
        Some(answer)
    }

    #[test]
    fn answers_of_both_kinds_in_any_pieces() {
        for (bytes, code) in [(PLAIN, 200), (CHUNKED, 400)] {
            assert_eq!(whole(bytes), Ok(Some(answer(code))));
            for cut in 1..bytes.len() {
                let mut p = Parser::default();
                assert_eq!(p.push(&bytes[..cut]), Ok(None), "cut {cut}");
                assert_eq!(p.push(&bytes[cut..]), Ok(Some(answer(code))), "cut {cut}");
            }
            let mut p = Parser::default();
            let (last, all) = bytes.split_last().expect("bytes");
            for b in all {
                assert_eq!(p.push(&[*b]), Ok(None));
            }
            assert_eq!(p.push(&[*last]), Ok(Some(answer(code))));
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for bad in [
            "SSH-2.0-OpenSSH\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\na",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\na",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab",
        ] {
            assert!(matches!(whole(bad.as_bytes()), Err(Bad::Form(_))), "{bad}");
        }
        let large = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", BODY_BYTES_MAX + 1);
        assert_eq!(whole(large.as_bytes()), Err(Bad::TooLarge));
        let large = format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n",
            BODY_BYTES_MAX + 1
        );
        assert_eq!(whole(large.as_bytes()), Err(Bad::TooLarge));
        let endless = [b"HTTP/1.1 200 OK\r\na: ".to_vec(), vec![b'x'; HEAD_BYTES_MAX]].concat();
        assert!(whole(&endless).is_err());
        let line = [&CHUNKED[..74], &vec![b' '; LINE_BYTES_MAX + 8]].concat();
        assert!(whole(&line).is_err());
    }

    #[test]
    fn a_connection_that_closes_is_not_kept() {
        let text = b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n";
        assert!(!whole(text).expect("valid").expect("complete").keep);
        let old = b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n";
        assert!(!whole(old).expect("valid").expect("complete").keep);
    }

    proptest! {
        #[test]
        fn random_bytes_are_the_same_in_pieces(pieces in proptest::collection::vec(any::<Vec<u8>>(), 0..8)) {
            prop_assert_eq!(in_pieces(&pieces), whole(&pieces.concat()).ok());
        }
        #[test]
        fn damage_is_the_same_in_pieces(at in 0usize..200, byte: u8, cut in 1usize..200) {
            for sound in [PLAIN, CHUNKED] {
                let mut bytes = sound.to_vec();
                let at = at % bytes.len();
                bytes[at] = byte;
                let (a, b) = bytes.split_at(cut % bytes.len());
                prop_assert_eq!(in_pieces(&[a, b]), whole(&bytes).ok());
            }
        }
    }
}
