//! The first message each way: who is there, does it belong here, what can both do.
//!
//! Until it is through, a peer gets [`limits::HELLO_BYTES_MAX`] bytes, [`limits::HANDSHAKE_DEADLINE`] (which the caller sets) and nothing else.

use crate::inbound::Inbound;
use crate::{Authenticator, Identity, Peer, limits};
use glowfs_rt::{Rt, Stream};
use glowfs_types::checksum::crc32c;
use glowfs_types::wire::frame::{FrameHeader, KIND_REQUEST, KIND_RESPONSE};
use glowfs_types::wire::hello::{Hello, HelloReply, features};
use glowfs_types::wire::method::HELLO;
use glowfs_types::wire::{ErrorBody, decode, encode};
use glowfs_types::{ClusterId, Error, Result, Status};
use std::future::poll_fn;
use std::io::IoSlice;
use zerocopy::IntoBytes;

/// What this build can do on a stream.
fn usable(features: u64, stream: &Stream) -> u64 {
    let known = features & features::SHM;
    if stream.can_pass_fds() { known } else { known & !features::SHM }
}

/// The connecting side.
pub(crate) async fn connect(rt: &Rt, stream: Stream, hello: &Hello) -> Result<(Inbound, Peer)> {
    let mut mine = hello.clone();
    mine.features = usable(mine.features, &stream);
    send(&stream, KIND_REQUEST, Status::Ok, encode(&mine)).await?;
    let mut inbound = Inbound::new(rt, stream.clone());
    let (header, body) = receive(&mut inbound, KIND_RESPONSE).await?;
    match Status::from_code(header.status.get()) {
        Status::Ok => {}
        status => return Err(Error::new(status, decode::<ErrorBody>(&body)?.message)),
    }
    let reply: HelloReply = decode(&body)?;
    same_cluster(hello.cluster, reply.cluster)?;
    if reply.features & !mine.features != 0 {
        return Err(bad(format!("features {:#x}, which we did not offer", reply.features)));
    }
    Ok((inbound, Peer::of_reply(stream.peer(), reply)))
}

/// The accepting side.
pub(crate) struct Accept<'a, H, A> {
    /// The template of the answer.
    pub info: HelloReply,
    pub authenticator: &'a dyn Authenticator,
    /// Told when the peer's hello has come.
    pub heard: H,
    /// Gives whoever it is a place, or refuses.
    pub admit: A,
}

impl<H: FnOnce(), A> Accept<'_, H, A> {
    /// After an error the peer has been told, as far as it could be.
    pub(crate) async fn run<P>(self, rt: &Rt, stream: Stream) -> Result<(Inbound, Peer, Hello, P)>
    where
        A: FnOnce(&Identity) -> Result<P>,
    {
        let mut inbound = Inbound::new(rt, stream.clone());
        let introduced = introduce(&mut inbound, self.info, self.authenticator, self.heard).await;
        let admitted = introduced.and_then(|(peer, reply, hello)| {
            let place = (self.admit)(&peer.identity)?;
            Ok((peer, reply, hello, place))
        });
        match admitted {
            Ok((peer, reply, hello, place)) => {
                send(&stream, KIND_RESPONSE, Status::Ok, encode(&reply)).await?;
                Ok((inbound, peer, hello, place))
            }
            Err(e) => {
                let body = encode(&ErrorBody { message: e.message.clone() });
                // The first error is the one that counts.
                let _ = send(&stream, KIND_RESPONSE, e.status, body).await;
                Err(e)
            }
        }
    }
}

async fn introduce(
    inbound: &mut Inbound,
    info: HelloReply,
    authenticator: &dyn Authenticator,
    heard: impl FnOnce(),
) -> Result<(Peer, HelloReply, Hello)> {
    let (_, body) = receive(inbound, KIND_REQUEST).await?;
    heard();
    let hello: Hello = decode(&body)?;
    same_cluster(info.cluster, hello.cluster)?;
    let identity = authenticator.check(&hello).await?;
    let features = usable(info.features & hello.features, inbound.stream());
    let reply = HelloReply { features, user: identity.user, root: identity.root, ..info };
    let peer = Peer::of_hello(inbound.stream().peer(), &hello, features, identity);
    Ok((peer, reply, hello))
}

/// All zero means that an end does not know its cluster yet.
fn same_cluster(ours: ClusterId, theirs: ClusterId) -> Result<()> {
    if ours == theirs || ours == ClusterId::default() || theirs == ClusterId::default() {
        return Ok(());
    }
    Err(Error::new(
        Status::WrongCluster,
        format!("this end belongs to cluster {ours}, the peer to {theirs}: check the addresses"),
    ))
}

async fn receive(inbound: &mut Inbound, kind: u8) -> Result<(FrameHeader, Vec<u8>)> {
    let header = inbound
        .header()
        .await?
        .ok_or_else(|| Error::new(Status::Disconnected, "the peer closed before the hello"))?;
    let plain = header.flags == 0 && header.bulk_len.get() == 0;
    if header.kind != kind || header.method.get() != HELLO || !plain {
        return Err(bad(format!(
            "a connection begins with a hello, not with method {} of kind {}",
            header.method, header.kind
        )));
    }
    if header.body_len.get() > limits::HELLO_BYTES_MAX {
        return Err(bad(format!("a hello of {} bytes", header.body_len)));
    }
    let body = inbound.body(&header).await?;
    Ok((header, body))
}

async fn send(stream: &Stream, kind: u8, status: Status, body: Vec<u8>) -> Result<()> {
    let header = FrameHeader {
        kind,
        method: HELLO.into(),
        status: status.code().into(),
        body_len: (body.len() as u32).into(),
        body_crc: crc32c(&body).into(),
        ..Default::default()
    }
    .seal();
    let bytes = [header.as_bytes(), &body].concat();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let n = poll_fn(|cx| stream.poll_write(cx, &[IoSlice::new(rest)], &[]))
            .await
            .map_err(|e| Error::new(Status::Disconnected, e.to_string()))?;
        if n == 0 {
            return Err(Error::new(Status::Disconnected, "the peer closed during the hello"));
        }
        rest = rest.get(n..).unwrap_or(&[]);
    }
    Ok(())
}

fn bad(what: String) -> Error {
    Error::new(Status::BadMessage, what)
}
