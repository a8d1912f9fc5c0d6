//! The shapes that most calls of clients have, as macros for `ops`: who is asking, one transaction of the namespace, and what others have to be told after it.
//!
//! Guarantee: nobody is answered before the others were told. What a call itself does stands where it is used.

/// A question; nothing is changed.
macro_rules! read_ops {
    ($s:ident, $conn:ident, $body:ident; $ty:ty, $q:ident, $cx:ident => $work:expr) => {{
        let mut $q: $ty = decode($body)?;
        $s.who($conn, &mut $q.caller).await?;
        $s.look(async |tx| {
            let $cx = &Context::new(tx, &$q.caller, $s);
            $work
        })
        .await?
    }};
}

/// Attributes that the caller may keep for a while.
macro_rules! leased {
    ($s:ident, $conn:ident, $body:ident; $ty:ty, $q:ident, $cx:ident => $work:expr) => {{
        let mut $q: $ty = decode($body)?;
        $s.who($conn, &mut $q.caller).await?;
        let watch = $s.watch();
        let attr = $s
            .look(async |tx| {
                let $cx = &Context::new(tx, &$q.caller, $s);
                $work
            })
            .await?;
        let lease_ms = watch.lease(attr.inode, $q.caller.client, $conn);
        Reply::msg(&AttrReply { lease_ms, ..$s.attr_reply(attr, None) })
    }};
}

/// A change; afterwards `$changes` says of what, and others are told.
macro_rules! write_ops {
    ($s:ident, $conn:ident, $body:ident; $ty:ty, $q:ident, $cx:ident => $work:expr; $out:ident => $changes:expr) => {{
        let mut $q: $ty = decode($body)?;
        $s.who($conn, &mut $q.caller).await?;
        $s.wait_for_old_leases().await;
        let work = async |tx: &Transaction| {
            let $cx = &Context::new(tx, &$q.caller, $s);
            $work
        };
        let once = $q.request != RequestId(0);
        let run = async |doubt: &Doubt| $s.run_on($q.inode, (false, once), doubt, &work).await;
        let $out = $s.once(&$q, run).await?;
        let changes: Vec<Change> = $changes;
        $s.changed($q.caller.client, &changes).await;
        $out
    }};
}

/// A change of the names `$names`; with `$gone` they lead elsewhere afterwards: others are told, and the caller learns what the directories are like
/// now, and may keep it for a while.
macro_rules! name_ops {
    ($s:ident, $conn:ident, $body:ident; $ty:ty, $q:ident, $cx:ident of $names:expr, gone $gone:expr => $work:expr; $out:ident => $changes:expr) => {{
        let mut $q: $ty = decode($body)?;
        $s.who($conn, &mut $q.caller).await?;
        $s.wait_for_old_leases().await;
        let watch = $s.watch();
        let work = async |tx: &Transaction| {
            let $cx = &Context::new(tx, &$q.caller, $s);
            let done = $work?;
            Ok((done, $cx.dirs_changed(), $cx.dirs_moved()))
        };
        let once = $q.request != RequestId(0);
        let (by, names) = ($q.caller.client, $names);
        let naming = $s.begin_names((by, $conn), $q.request, &names, $gone);
        let run = async |_: &Doubt| $s.run_naming(naming.as_ref(), once, &work).await;
        let done = $s.once(&$q, run).await;
        let ($out, mut dirs, moved) = match done {
            Ok(done) => done,
            Err(e) => {
                // No more than that: who fails because of another's change must not be waited for by that.
                $s.names_failed(naming, &e);
                $s.others_finished(by, seen(&names, &[])).await;
                return Err(e);
            }
        };
        match $changes {
            Some(changes) => {
                $s.names_committed(naming.as_ref(), by, &changes, &dirs);
                $s.changed_dirs(by, &changes, (&watch, &dirs)).await;
            }
            None => $s.names_changed_unknown(naming.as_ref()).await,
        }
        $s.others_finished(by, seen(&names, &dirs)).await;
        watch.lease_dirs(&mut dirs, $q.caller.client, $conn);
        ($out, dirs, moved)
    }};
}
