//! mgmtd and metadata services as their configuration files say it, over FoundationDB: an election, a fail-over, the root directory. All in one process,
//! because the stand-in keeps its data in it.

mod common;

use common::Place;
use glowfs_kv::{Engine, Transaction};
use glowfs_meta::MetaConfig;
use glowfs_mgmtd::Config;
use glowfs_rt::{Duration, Instant, Rt, real};
use std::path::Path;
use std::rc::Rc;

const SECOND: Duration = Duration::from_secs(1);

fn engine(place: &Place) -> String {
    let file = place.cluster_file.display();
    let library = place.library.as_ref();
    let library = library.map(|l| format!("library = \"{}\"\n", l.display())).unwrap_or_default();
    format!("[engine]\nkind = \"foundationdb\"\ncluster_file = \"{file}\"\n{library}")
}

fn head(place: &Place, node: u64, dir: &Path) -> String {
    let (cluster, tokens) = (place.config("").cluster, dir.display());
    format!(
        "node_id = {node}\ncluster_id = \"{cluster}\"\nlisten = [\"tcp://127.0.0.1:0\"]\nservice_token_file = \"{tokens}/service\"\n"
    )
}

async fn until(rt: &Rt, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end: Instant = rt.now() + 20 * SECOND;
    while !holds().await {
        assert!(rt.now() < end, "{what}: not within 20 s");
        rt.sleep(Duration::from_millis(20)).await;
    }
}

/// Whether a metadata service has made the root directory.
async fn has_root(engine: &Rc<dyn Engine>) -> bool {
    let tx = Transaction::new(engine.clone());
    let page = tx.get_range(&[0; 8], &[0x01], 1000, false).await.expect("read");
    page.entries.iter().any(|(k, _)| k.len() == 9 && k[8] == b'M')
}

#[test]
fn services_over_foundationdb() {
    let place = Place::new();
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_owned();
    std::fs::write(path.join("service"), "the-service-token\n").expect("written");
    std::fs::write(path.join("root"), "the-root-token\n").expect("written");
    real::run(move |rt| async move {
        let mgmtd = async |node: u64| {
            let head = head(&place, node, &path);
            let root = path.join("root");
            let text =
                format!("{head}root_token_file = \"{}\"\n{}", root.display(), engine(&place));
            let config: Config = toml::from_str(&text).expect("a configuration");
            glowfs_mgmtd::start(&rt, config).await.expect("mgmtd starts")
        };
        let (one, two) = (mgmtd(1).await, mgmtd(2).await);
        until(&rt, "a primary", async || one.is_primary() || two.is_primary()).await;
        assert!(!(one.is_primary() && two.is_primary()), "two primaries");
        let addresses = |r: &glowfs_mgmtd::Running| {
            let all = r.addresses().iter().map(|a| format!("\"{a}\""));
            all.collect::<Vec<_>>().join(", ")
        };
        let mgmtds = format!("mgmtd = [{}, {}]\n", addresses(&one), addresses(&two));
        let store = place.open(&rt, "looks");
        let mut metas = Vec::new();
        for node in [101, 102] {
            let text = format!("{}{mgmtds}{}", head(&place, node, &path), engine(&place));
            let config: MetaConfig = toml::from_str(&text).expect("a configuration");
            metas.push(glowfs_meta::start(&rt, config).await.expect("meta starts"));
        }
        until(&rt, "the root directory", async || has_root(&store).await).await;
        let (primary, standby) = if one.is_primary() { (one, two) } else { (two, one) };
        assert!(!standby.is_primary());
        primary.crash().await;
        until(&rt, "another primary", async || standby.is_primary()).await;
        for meta in metas {
            meta.stop().await.expect("stopped");
        }
        standby.stop().await;
    });
}

/// What a wrong configuration says, and where.
#[test]
fn a_wrong_configuration_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_owned();
    std::fs::write(path.join("service"), "the-service-token\n").expect("written");
    real::run(move |rt| async move {
        let mut place = Place::new();
        place.cluster_file = path.join("nowhere.cluster");
        let text = |engine: &str| {
            let head = head(&place, 101, &path);
            format!("{head}mgmtd = [\"tcp://127.0.0.1:1\"]\n{engine}")
        };
        let config: MetaConfig = toml::from_str(&text(&engine(&place))).expect("a configuration");
        let Err(e) = glowfs_meta::start(&rt, config).await else { panic!("no cluster file") };
        assert!(e.message.contains("nowhere.cluster") && e.message.contains("No such file"), "{e}");
        let misspelt = text("[engine]\nkind = \"foundationdb\"\ncluster = \"/x\"\n");
        let e = toml::from_str::<MetaConfig>(&misspelt).expect_err("an unknown key");
        assert!(e.to_string().contains("cluster_file"), "{e}");
    });
}
