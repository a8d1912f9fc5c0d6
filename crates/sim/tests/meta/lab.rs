//! A cluster with connected clients, and what they ask.

use glowfs_client::{Client, OpenFile};
use glowfs_rt::Buf;
pub use glowfs_sim::cluster::lab::{LIMIT, Lab, SHAPE};
use glowfs_sim::cluster::workload::{caller, open_or_make, report};
use glowfs_types::wire::meta::*;
use glowfs_types::*;
use std::rc::Rc;

/// The second client writes behind the end of the file "f", which was cut to nothing: the first one reads that, and zeros before it.
pub fn written_behind_a_cut_is_there(lab: &Lab, file: Rc<OpenFile>, case: String) {
    lab.run(1, move |c| async move {
        file.write(4096, Buf::from_vec(vec![9; 4096])).await.expect("written");
        file.flush().await.expect("flushed");
        c.sync(report(&c, &file, true)).await.expect("synced");
    });
    lab.run(0, move |c| async move {
        let file = open_or_make(&c, "f").await.expect("open").0;
        let (result, buf) = file.read(0, c.rt().alloc(8192)).await;
        assert_eq!(result.expect("read"), 8192, "{case}");
        assert!(buf[..4096].iter().all(|b| *b == 0) && buf[4096..].iter().all(|b| *b == 9));
    });
}

pub fn name(name: &str) -> Name {
    name.as_bytes().to_vec().into()
}

pub fn make(client: &Client, request: u128, file: &str) -> Make {
    Make {
        caller: caller(client),
        request: RequestId(request),
        parent: ROOT_INODE,
        name: name(file),
        kind: InodeKind::File,
        mode: 0o644,
        rdev: 0,
        symlink: Vec::new(),
        open: None,
        exclusive: true,
        ..Make::default()
    }
}

pub async fn look(client: &Client, file: &str) -> Result<Attr> {
    let query = Lookup { caller: caller(client), parent: ROOT_INODE, name: name(file) };
    client.lookup(query).await.map(|r| r.attr)
}
