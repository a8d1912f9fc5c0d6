//! Every bound of this crate, with its unit. Nothing a peer does makes a connection hold more; what all connections of one user may hold is bounded where one
//! byte of theirs costs us many (see [`crate::shares`]).

use glowfs_rt::Duration;

/// The time a new connection has to say hello and be answered.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);
/// The greatest hello, in bytes, in either direction: nobody is authenticated yet.
pub const HELLO_BYTES_MAX: u32 = 16 << 10;
/// How often the identity behind a connection is looked at again: a token that was taken back is of no use for longer than this (and the
/// time for which the service believes what it was told of it).
pub const IDENTITY_RECHECK: Duration = Duration::from_secs(20);
/// Own calls on one connection that are not answered yet; one more gets `Overloaded`.
pub const OUTSTANDING_CALLS_MAX: usize = 4096;
/// Calls of the peer that we have not answered yet; one more is answered `Overloaded`.
pub const INCOMING_CALLS_MAX: usize = 4096;
/// Bytes that calls of the peer hold here (bodies, inline bulk, room for answers) until their answer has left; a call that would
/// go above is answered `Overloaded`.
pub const INCOMING_BYTES_MAX: usize = 256 << 20;
/// Bytes queued for sending above which own calls wait.
pub const SEND_QUEUE_BYTES: usize = 64 << 20;
/// Bytes queued for sending at which the peer is taken to have stopped reading, and the connection is closed.
pub const SEND_QUEUE_BYTES_MAX: usize = 512 << 20;
/// Slices in one vectored write.
pub const WRITE_SLICES_MAX: usize = 128;
/// The buffer that headers and bodies are read through, in bytes.
pub const READ_BUFFER_BYTES: usize = 16 << 10;
/// A message of the peer that stalls half-way for so long ends the connection.
pub const FRAME_STALL: Duration = Duration::from_secs(60);
/// So many bytes a second a peer sends of a message at the least, beyond that time: what comes slower, however steadily, ends the connection. Only time in which
/// we wait for the peer counts.
pub const FRAME_BYTES_PER_SECOND_MIN: u32 = 256 << 10;
/// Inline bulk that all users send to one server at a time, in bytes; a call that would go above is answered `Overloaded`. Services and who has root's token are no
/// such users: they could do worse.
pub const BULK_RECEIVED_MAX: usize = 2 << 30;
/// The same of one user.
pub const USER_BULK_RECEIVED_MAX: usize = 512 << 20;
/// Bytes of headers and bodies (not of bulk) that wait to be sent to all connections of one user at a server: above it, the connection that most of them wait for is
/// closed. Services and who has root's token are no such users.
pub const USER_QUEUED_BYTES_MAX: usize = 512 << 20;
/// How often a connection is looked after.
pub const UPKEEP_PERIOD: Duration = Duration::from_secs(2);
/// A peer that says nothing for so long is asked whether it is there; already after one [`UPKEEP_PERIOD`] if a call of ours waits.
pub const SILENCE_MAX: Duration = Duration::from_secs(30);
/// A peer that does not answer such a question for so long is taken for dead. Time in which something comes from it does not count, nor time in which it takes what was
/// to be sent before the question.
pub const PING_DEADLINE: Duration = Duration::from_secs(10);
/// A peer that has not answered it after so long is taken for dead in any case: a message of the greatest length before the question and one before the answer take less, or come
/// too slowly for [`FRAME_BYTES_PER_SECOND_MIN`].
pub const PING_TIME_MAX: Duration = Duration::from_secs(660);
/// A patient call whose time is up goes on waiting as long as what it waits for delivers so much,
pub const DELIVERY_BYTES_PER_SECOND_MIN: u32 = FRAME_BYTES_PER_SECOND_MIN;
/// looked at so often,
pub const DELIVERY_PAUSE_MAX: Duration = Duration::from_secs(2);
/// and no call of its kind is answered that was made later than it by more than this;
pub const OVERTAKEN_BY: Duration = Duration::from_secs(1);
/// no call goes on so for longer than this.
pub const LATE_MAX: Duration = Duration::from_secs(30);
/// What is queued behind more bytes than this has to wait for them.
pub const BEHIND_BYTES_MIN: u64 = 512 << 10;
/// Shared regions that one end may name on one connection.
pub const REGIONS_MAX: usize = 256;
/// The greatest length of one shared region, in bytes.
pub const REGION_BYTES_MAX: u64 = 1 << 40;
/// The total length of the regions one end may name on one connection, in bytes of address space.
pub const REGIONS_TOTAL_BYTES_MAX: u64 = 4 << 40;
/// How long memory that a peer could still write to is kept from reuse after its end of the connection closed: what its disks were asked for may still come.
pub const QUARANTINE: Duration = Duration::from_secs(30);
/// A call that timed out or was dropped keeps its place this long; when the table is full of such, the connection is
/// closed as unresponsive.
pub const ABANDONED_MAX: Duration = Duration::from_secs(60);
/// Connections that have not said their hello yet, at a time; one more ends the oldest, which has said nothing for the longest time.
pub const HANDSHAKES_MAX: usize = 256;
/// Connections that have said it and are not answered yet (mgmtd may not say what their tokens stand for), at a time; one more ends the oldest.
pub const UNANSWERED_HELLOS_MAX: usize = 2048;
/// Connections one server serves at a time.
pub const SERVER_CONNECTIONS_MAX: usize = 16_384;
/// Of the places for connections one in so many is kept for services,
pub const SERVICE_CONNECTIONS_PART: usize = 16;
/// and one in so many is the most that one user gets (who is neither a service nor root).
pub const USER_CONNECTIONS_PART: usize = 4;
/// How long a stopping server lets answers go out.
pub const STOP_GRACE: Duration = Duration::from_secs(5);
/// The first pause before a failed connection is tried again; doubles up to [`RECONNECT_PAUSE_MAX`], with jitter.
pub const RECONNECT_PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause before a failed connection is tried again.
pub const RECONNECT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Address lists whose connection or last failure a connector remembers.
pub const CONNECTOR_ENTRIES_MAX: usize = 65_536;
