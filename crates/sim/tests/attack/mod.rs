//! Services called by hand, over the wire, by somebody who means harm: with forged, expired, borrowed, taken-back and replayed tokens and
//! capabilities, in others' names, out of order, and with frames that are none. Nobody gets a byte or an inode that way, and the answer says why.
#![allow(clippy::expect_used, missing_docs)]

mod frames;
mod lab;
mod meta;
mod mgmtd;
mod storage;
