//! All tests of this crate but the unit tests in one program: each program of its own would be linked with everything anew.

mod begin_life;
mod channels;
mod compact;
mod counts;
mod crash;
mod cut_off;
mod damage;
mod fake;
mod flush_failed;
mod flush_of;
mod full;
mod log_full;
mod marks;
mod mend;
mod order;
mod real;
mod small;
mod steps;
mod unreadable;
