//! The memory of a ring as an application may leave it. First byte: the entries (a power of two up to 128). Then rounds: each begins with a
//! byte that says how many operations are completed, and 16 bytes that go over the mark, the indices and the flags; what follows in the input is the queue.

use glowfs_usrbio::{Completion, Consumer, SharedMemory, Submission, ring_bytes};
use std::os::fd::AsFd;

/// Offsets of what an application can write over (docs/formats/rings.md).
const WORDS: [usize; 4] = [64, 256, 320, 384];

pub fn run(input: &[u8]) {
    let Some((&first, mut rest)) = input.split_first() else { return };
    let entries = 1u32 << (first & 7);
    let len = ring_bytes(entries);
    let Ok(memory) = SharedMemory::new("fuzz", len) else { return };
    // SAFETY: nobody else has this memory but the consumer below, which expects it to change; `bytes` are copied, inside of it.
    let put = |at: usize, bytes: &[u8]| unsafe {
        let n = bytes.len().min(len - at);
        memory.as_ptr().add(at).copy_from_nonoverlapping(bytes.as_ptr(), n);
    };
    put(0, if first & 8 == 0 { b"GLOWRNG\x01" } else { rest.get(..8).unwrap_or_default() });
    put(8, &entries.to_le_bytes());
    let adopted = memory.as_fd().try_clone_to_owned().map(|fd| SharedMemory::adopt(fd, len));
    let Ok(Ok(adopted)) = adopted else { return };
    let Ok(consumer) = Consumer::new(adopted, entries) else { return };
    while let Some((head, tail)) = rest.split_first_chunk::<17>() {
        for (at, word) in WORDS.iter().zip(head[1..].chunks_exact(4)) {
            put(*at, word);
        }
        put(4096, tail);
        consumer.sleeps(head[0] & 1 == 1);
        let Ok(there) = consumer.available() else { return };
        assert!(there <= entries, "more than there is room for");
        for _ in 0..there {
            let _: Submission = consumer.take();
        }
        assert!(consumer.working() <= entries, "each one taken has room for its completion");
        for user in 0..u64::from(consumer.working().min(u32::from(head[0]))) {
            consumer.complete(Completion { user, result: -1 });
        }
        rest = tail;
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let round = |submitted: u8, taken: u8| {
        let mut r = vec![0; 17];
        (r[0], r[1], r[5]) = (255, submitted, taken);
        r
    };
    vec![
        [&[3u8][..], &round(4, 0), &round(9, 4), &[1, 2, 3]].concat(),
        [&[0u8][..], &round(1, 0), &round(2, 1)].concat(),
    ]
}
