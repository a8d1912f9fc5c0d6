//! Writes that are lost before they are durable, against a cluster in memory.

use crate::fake::{CHUNK, Fake, open};
use glowfs_rt::real::run;
use glowfs_rt::{Buf, Duration};
use glowfs_types::wire::meta::SetAttr;
use glowfs_types::*;

/// All replicas of a chain lose their power between a write and its fsync.
#[test]
fn a_flush_does_not_hide_that_writes_are_gone() {
    run(|rt| async move {
        let fake = Fake::start(&rt, 1, 1).await;
        let client = fake.client().await;
        let (file, other) = (open(&client).await, open(&client).await);
        let write = |index: u64| file.write(index * CHUNK, Buf::from_vec(vec![9; 4096]));
        let lost = |e: Result<()>| assert_eq!(e.expect_err("gone").status, Status::WritesLost);
        // What was flushed before is not lost.
        write(0).await.expect("written");
        file.flush().await.expect("flushed");
        fake.lose_power(ChainId(1));
        file.flush().await.expect("all is there");
        // What was not is, on that chain only; each open file hears of it once.
        write(0).await.expect("written");
        fake.lose_power(ChainId(2));
        file.flush().await.expect("it is on the first chain");
        write(0).await.expect("written");
        write(1).await.expect("written");
        fake.lose_power(ChainId(2));
        lost(file.flush().await);
        file.flush().await.expect("heard of it");
        lost(other.flush().await);
        other.flush().await.expect("heard of it");
        let later = open(&client).await;
        later.flush().await.expect("it was told of before");
        // What is written again is there.
        write(1).await.expect("written");
        file.flush().await.expect("flushed");
        assert_eq!(file.losses(), 1);
        // Whoever closes the file without a flush may look.
        write(2).await.expect("written");
        fake.lose_power(ChainId(3));
        while client.routing().version < fake.state.routing.borrow().version {
            rt.sleep(Duration::from_millis(5)).await;
        }
        assert_eq!((file.losses(), other.losses()), (2, 2));
        lost(file.flush().await);
        // What was cut to nothing is nobody's loss.
        write(2).await.expect("written");
        fake.cut().await;
        file.renew().await.expect("renewed");
        for chain in 1..=3 {
            fake.lose_power(ChainId(chain));
        }
        file.flush().await.expect("nothing was written since");
        // Nor is it if this client has done that, and whoever closes the file does not hear of one.
        write(2).await.expect("written");
        let told = file.losses();
        let query = SetAttr { inode: file.inode(), len: Some(0), ..SetAttr::default() };
        client.setattr(query).await.expect("cut");
        for chain in 1..=3 {
            fake.lose_power(ChainId(chain));
        }
        while client.routing().version < fake.state.routing.borrow().version {
            rt.sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(file.losses(), told);
        client.close().await;
    });
}
