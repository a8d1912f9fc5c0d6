//! A small cluster, somebody who has a secret in it, and connections made by hand.

use glowfs_client::{Client, ClientConfig, FileAccess, OpenFile};
use glowfs_net::{Bulk, Conn, Connector, NoCalls, Request};
use glowfs_rt::{Address, Buf, Duration, Rt};
use glowfs_sim::cluster::harness::{CLUSTER, Cluster, ROOT_TOKEN, Shape};
use glowfs_types::routing::Role;
use glowfs_types::wire::hello::Hello;
use glowfs_types::wire::meta::*;
use glowfs_types::wire::mgmtd::{UserAdd, UserAddReply, UserInfo};
use glowfs_types::wire::{decode, encode, method};
use glowfs_types::*;
use std::cell::RefCell;
use std::rc::Rc;

/// Simulated time that a test may take.
const LIMIT: Duration = Duration::from_secs(900);
const DEADLINE: Duration = Duration::from_secs(20);
/// Who has the secret, and who wants it.
pub const ALICE: u32 = 1001;
pub const MALLORY: u32 = 1002;
/// What nobody else may read.
pub const SECRET: &[u8] = b"what only Alice may read";

pub struct Lab {
    pub rt: Rt,
    pub mgmtd: Vec<String>,
    pub meta: Vec<String>,
    pub storage: Vec<String>,
    root: RefCell<Option<Rc<Client>>>,
    /// Dropping a connector closes its connections.
    connectors: RefCell<Vec<Rc<Connector>>>,
    pub alice_token: String,
    pub mallory_token: String,
}

/// Runs `work` in a cluster that serves.
pub fn siege<F: Future<Output = ()> + 'static>(work: impl FnOnce(Rc<Lab>) -> F + 'static) {
    let cluster = Cluster::start(7, Shape::SINGLE);
    cluster.bootstrap().expect("a cluster");
    let node = cluster.clients[0].clone();
    let at = |s: &glowfs_sim::cluster::harness::Service| vec![Cluster::address(s)];
    let mut lab = Lab {
        rt: node.rt(),
        mgmtd: at(&cluster.managers[0]),
        meta: at(&cluster.metas[0]),
        storage: at(&cluster.storages[0]),
        root: RefCell::default(),
        connectors: RefCell::default(),
        alice_token: String::new(),
        mallory_token: String::new(),
    };
    let done = cluster.world.run(&node, LIMIT, async move {
        lab.alice_token = lab.add_user(ALICE).await;
        lab.mallory_token = lab.add_user(MALLORY).await;
        let root = lab.client(ROOT_TOKEN).await;
        make(&root, 0, ROOT_INODE, "home", InodeKind::Directory, 0o777).await.expect("home");
        *lab.root.borrow_mut() = Some(root);
        work(Rc::new(lab)).await;
    });
    assert!(done.is_some(), "not done within {LIMIT:?}");
    assert!(cluster.failures.borrow().is_empty(), "{:?}", cluster.failures.borrow());
}

pub fn caller(client: ClientId, uid: u32) -> Caller {
    Caller { uid, gid: uid, client, volume: VolumeId(1), ..Caller::default() }
}

/// MAKE; a file is opened for writing as well.
pub async fn make(
    client: &Rc<Client>,
    uid: u32,
    parent: InodeId,
    name: &str,
    kind: InodeKind,
    mode: u32,
) -> Result<AttrReply> {
    let session = client.new_session();
    let flags = OpenFlags {
        read: true,
        write: true,
        truncate: false,
        session,
        append: false,
        inline: false,
        exec: false,
    };
    let query = Make {
        caller: caller(client.id(), uid),
        request: RequestId(0),
        parent,
        name: name.as_bytes().to_vec().into(),
        kind,
        mode,
        rdev: 0,
        symlink: Vec::new(),
        open: (kind == InodeKind::File).then_some(flags),
        exclusive: false,
        ..Make::default()
    };
    client.make(query).await
}

/// A file of Alice's with the secret in it, open for writing.
pub struct Secret {
    pub client: Rc<Client>,
    pub file: Rc<OpenFile>,
    pub attr: Attr,
    pub capability: Capability,
    pub session: SessionId,
}

impl Lab {
    /// A connection that shows a token and says that it is a client.
    pub async fn conn(&self, at: &[String], token: &str, client: ClientId) -> Result<Rc<Conn>> {
        let hello = Hello {
            cluster: CLUSTER.parse().expect("an id"),
            token: token.into(),
            role: Some(Role::Client),
            client,
            ..Hello::default()
        };
        let connector = Connector::new(&self.rt, hello, Rc::new(NoCalls));
        self.connectors.borrow_mut().push(connector.clone());
        connector.connect(at).await
    }
    /// A client as it is shipped.
    pub async fn client(&self, token: &str) -> Rc<Client> {
        let config = ClientConfig {
            mgmtd: self.mgmtd.clone(),
            token: token.into(),
            ..ClientConfig::default()
        };
        Client::connect(&self.rt, config).await.expect("a client")
    }
    pub fn root(&self) -> Rc<Client> {
        self.root.borrow().clone().expect("it was made first")
    }
    /// Adds a user, or gives it a new token.
    pub async fn add_user(&self, uid: u32) -> String {
        let conn = self.conn(&self.mgmtd, ROOT_TOKEN, ClientId(0)).await.expect("root");
        let user = UserInfo {
            user: UserId(uid.into()),
            name: format!("user {uid}"),
            groups: vec![uid],
            root: false,
            admin: false,
            service: false,
        };
        let reply = call(&conn, method::USER_ADD, &UserAdd { user, only_new: false, token: None })
            .await
            .expect("a user");
        decode::<UserAddReply>(&reply).expect("a token").token
    }
    pub async fn home(&self) -> InodeId {
        let root = self.root();
        let name = b"home".to_vec().into();
        let query = Lookup { caller: caller(root.id(), 0), parent: ROOT_INODE, name };
        root.lookup(query).await.expect("home").attr.inode
    }
    /// Makes it, in `home`.
    pub async fn secret(&self, name: &str) -> Secret {
        let client = self.client(&self.alice_token).await;
        let home = self.home().await;
        let made = make(&client, ALICE, home, name, InodeKind::File, 0o600).await.expect("a file");
        let open = made.open.expect("open");
        let access =
            FileAccess { caller: caller(client.id(), ALICE), read: true, write: true, exec: false };
        let file = client.open_file(&open, access).expect("open");
        file.write(0, Buf::from_vec(SECRET.to_vec())).await.expect("written");
        let capability = capability_of(&open);
        let session = open.session.expect("a session");
        let sync = Sync {
            caller: caller(client.id(), ALICE),
            request: RequestId(0),
            inode: made.attr.inode,
            session: Some(session),
            len_at_least: file.len_written(),
            epoch: file.epoch(),
            mtime: None,
            atime: None,
            durable: false,
            ..Sync::default()
        };
        let attr = client.sync(sync).await.expect("reported").attr;
        Secret { client, file, attr, capability, session }
    }
}

impl Secret {
    /// What is in it, by an honest read.
    pub async fn content(&self, lab: &Lab) -> Vec<u8> {
        let (result, buf) = self.file.read(0, lab.rt.alloc(SECRET.len())).await;
        assert_eq!(result.expect("readable"), SECRET.len());
        buf.to_vec()
    }
    pub async fn is_untouched(&self, lab: &Lab) {
        assert_eq!(self.content(lab).await, SECRET);
        let query = OfInode { caller: caller(self.client.id(), ALICE), inode: self.attr.inode };
        let now = self.client.getattr(query).await.expect("it is there").attr;
        assert_eq!(now, self.attr);
    }
}

pub fn capability_of(open: &OpenReply) -> Capability {
    zerocopy::FromBytes::read_from_bytes(&open.capability[..]).expect("a capability")
}

pub async fn call<Q: minicbor::Encode<()>>(conn: &Conn, method: u16, q: &Q) -> Result<Vec<u8>> {
    call_raw(conn, method, encode(q)).await
}

pub async fn call_raw(conn: &Conn, method: u16, body: Vec<u8>) -> Result<Vec<u8>> {
    let request =
        Request { method, body, bulk: Bulk::None, tenant: TenantId(0), deadline: DEADLINE };
    conn.call(request).await.map(|r| r.body)
}

/// The answer must be this refusal, and say something.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(result: Result<T>, status: Status) {
    match result {
        Err(e) if e.status == status && e.message.len() > 10 => {}
        other => panic!("not refused with {status}: {other:?}"),
    }
}

/// Bodies that are not what they should be: nothing, noise, and the beginnings of `good`.
pub fn bad_bodies(good: &[u8]) -> Vec<Vec<u8>> {
    let mut out = vec![vec![0xff; 64], vec![0x9f; 4096], vec![0x5b, 0xff, 0xff, 0xff, 0xff]];
    out.extend((0..good.len()).step_by(7).map(|n| good[..n].to_vec()));
    out
}

pub fn address(at: &[String]) -> Address {
    at[0].parse().expect("an address")
}
