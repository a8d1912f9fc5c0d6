//! Who asks: a run over everything, and the repair of what it found.

use super::census::{Census, FINDINGS_MAX, SLICE_INODES};
use glowfs_rt::{Duration, Rt};
use glowfs_types::wire::fsck::{
    FSCK_INODES_MAX, FSCK_PAGE_MAX, Finding, Fsck, FsckReply, FsckWish, Place, Problem,
};
use glowfs_types::{Error, InodeId, Result};
use std::collections::BTreeMap;

/// How often the names of an inode are looked for that keeps changing.
const ROUNDS: u32 = 4;
/// Names of one inode that are looked at, in bytes with what stands beside each: they go in one message, which takes 4 MiB.
const NAMES_BYTES_MAX: usize = 1 << 20;
/// What stands beside each, in bytes.
const NAME_BYTES: usize = 16;
/// How long what a dead client left behind may stay before it counts: longer than the grace of its session.
const LINGER: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 15 });
/// Pause between looks at that.
const LINGER_PAUSE: Duration = Duration::from_millis(500);

/// How far a run is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// What it is at.
    pub step: &'static str,
    /// Records read in this step, or findings mended.
    pub done: u64,
    /// How many there are, as far as known; 0: not known.
    pub of: u64,
}

/// What a run has found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// Findings beyond those.
    pub more: u64,
    /// Inodes that changed each time they were looked at, or have too many names.
    pub undecided: Vec<InodeId>,
    /// Records read.
    pub records: u64,
    /// Entries.
    pub names: u64,
    /// Inodes.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
}

/// What a repair has done.
#[derive(Clone, Debug, Default)]
pub struct Mended {
    /// Findings mended.
    pub mended: u64,
    /// Findings that had changed meanwhile.
    pub changed: u64,
    /// Findings that could not be mended, and why.
    pub failed: Vec<(Finding, Error)>,
}

/// The names of an inode.
#[derive(Default)]
struct Names {
    places: Vec<Place>,
    bytes: usize,
}

impl Names {
    fn add(&mut self, place: Place) {
        self.bytes += place.name.len() + NAME_BYTES;
        self.places.push(place);
        if self.are_too_many() {
            self.places = Vec::new();
        }
    }
    /// Then they are not kept.
    fn are_too_many(&self) -> bool {
        self.bytes > NAMES_BYTES_MAX
    }
}

struct Run<'a, A, P> {
    ask: &'a A,
    progress: &'a mut P,
    report: Report,
}

/// Checks everything. `ask` brings a question to [`super::answer`].
pub async fn check<A, P>(rt: &Rt, ask: &A, progress: &mut P) -> Result<Report>
where
    A: AsyncFn(Fsck) -> Result<FsckReply>,
    P: FnMut(Progress),
{
    let mut run = Run { ask, progress, report: Report::default() };
    let (mut census, blind) = run.read_all().await?;
    run.report.directories = census.directories();
    let suspects: Vec<_> = census.suspects().into_iter().collect();
    let mut found = Vec::new();
    for some in suspects.chunks(FSCK_INODES_MAX) {
        found.extend(run.judge(some.to_vec()).await?);
    }
    if blind {
        found.iter_mut().for_each(not_to_be_touched);
    }
    run.keep(found);
    for (wish, inodes) in
        [(FsckWish::Cycle, census.circles()), (FsckWish::Subdirs, census.odd_subdirs())]
    {
        for inode in inodes {
            let q = Fsck { wish, inodes: vec![inode], ..Fsck::default() };
            let reply = (run.ask)(q).await?;
            run.keep(reply.findings);
        }
    }
    run.verify(rt).await?;
    run.report.more += u64::from(census.more);
    run.report.findings.sort_by_key(|f| (f.problem, f.inode));
    Ok(run.report)
}

/// Counts of names cannot be trusted while there are entries that cannot be read.
fn not_to_be_touched(f: &mut Finding) {
    if matches!(f.problem, Problem::Links | Problem::ExtraNames | Problem::Unnamed) {
        f.cure.clear();
        f.text += "; left alone, for an entry that cannot be read may lead to it";
    }
}

impl<A, P> Run<'_, A, P>
where
    A: AsyncFn(Fsck) -> Result<FsckReply>,
    P: FnMut(Progress),
{
    fn keep(&mut self, found: Vec<Finding>) {
        for f in found {
            if self.report.findings.len() < FINDINGS_MAX {
                self.report.findings.push(f);
            } else {
                self.report.more += 1;
            }
        }
    }

    /// Reads every record once, and again for each further slice of inodes. Also whether an entry could not be read.
    async fn read_all(&mut self) -> Result<(Census, bool)> {
        let mut census = None;
        let (mut blind, mut first) = (false, true);
        loop {
            let mut from = Vec::new();
            let (mut done, mut of) = (0, 0);
            loop {
                let q = Fsck {
                    wish: FsckWish::Page,
                    from: from.clone(),
                    limit: FSCK_PAGE_MAX,
                    ..Fsck::default()
                };
                let page = (self.ask)(q).await?;
                let census =
                    census.get_or_insert_with(|| Census::new(page.total_inodes, SLICE_INODES));
                census.take(&page);
                done += page.records;
                if first {
                    blind |= page.blind;
                    self.report.records += page.records;
                    self.report.names += page.names.len() as u64;
                    self.report.inodes += page.inodes.len() as u64;
                    // An entry and its cookie for each inode, and the inode.
                    of = of.max(page.total_inodes.saturating_mul(3));
                    self.keep(page.findings);
                }
                (self.progress)(Progress { step: "reading records", done, of });
                match page.next {
                    Some(next) => from = Vec::from(next),
                    None => break,
                }
            }
            first = false;
            let more = census.as_mut().is_some_and(Census::next_slice);
            match census {
                Some(census) if !more => return Ok((census, blind)),
                _ => {}
            }
        }
    }

    /// Looks for all names of some inodes, and judges those that did not change meanwhile.
    async fn judge(&mut self, mut suspects: Vec<InodeId>) -> Result<Vec<Finding>> {
        let mut found = Vec::new();
        for _ in 0..ROUNDS {
            if suspects.is_empty() {
                return Ok(found);
            }
            let wish = FsckWish::Look;
            let look = (self.ask)(Fsck { wish, inodes: suspects, ..Fsck::default() }).await?;
            let inodes: Vec<_> = look.changes.iter().map(|(id, _)| *id).collect();
            let mut names = self.names_of(&inodes).await?;
            suspects = Vec::new();
            for (inode, change) in look.changes {
                let names = names.remove(&inode).unwrap_or_default();
                if names.are_too_many() {
                    self.report.undecided.push(inode);
                    continue;
                }
                let names = names.places;
                let about = Finding { inode, change, names, ..Finding::default() };
                let (wish, finding) = (FsckWish::Judge, Some(about));
                let reply = (self.ask)(Fsck { wish, finding, ..Fsck::default() }).await?;
                found.extend(reply.findings);
                if reply.busy {
                    suspects.push(inode);
                }
            }
        }
        self.report.undecided.extend(suspects);
        Ok(found)
    }

    async fn names_of(&mut self, inodes: &[InodeId]) -> Result<BTreeMap<InodeId, Names>> {
        let mut names: BTreeMap<_, Names> = BTreeMap::new();
        let (mut from, mut done, of) = (Vec::new(), 0, self.report.names);
        loop {
            let q = Fsck {
                wish: FsckWish::Places,
                from,
                limit: FSCK_PAGE_MAX,
                inodes: inodes.to_vec(),
                ..Fsck::default()
            };
            let page = (self.ask)(q).await?;
            for (inode, place) in page.places {
                names.entry(inode).or_default().add(place);
            }
            done += page.records;
            (self.progress)(Progress { step: "looking for names", done, of });
            match page.next {
                Some(next) => from = Vec::from(next),
                None => return Ok(names),
            }
        }
    }

    /// Looks at each finding of a page once more; what goes by itself gets the time to do so.
    async fn verify(&mut self, rt: &Rt) -> Result<()> {
        let until = rt.now() + LINGER;
        loop {
            let mut lingering = false;
            let all = std::mem::take(&mut self.report.findings);
            for f in all {
                if f.key.is_empty() {
                    self.report.findings.push(f);
                    continue;
                }
                let (wish, finding) = (FsckWish::Verify, Some(f));
                let reply = (self.ask)(Fsck { wish, finding, ..Fsck::default() }).await?;
                lingering |= reply.findings.iter().any(|f| f.lingers);
                self.report.findings.extend(reply.findings);
            }
            if !lingering || rt.now() >= until {
                return Ok(());
            }
            (self.progress)(Progress { step: "waiting for dead clients", done: 0, of: 0 });
            rt.sleep(LINGER_PAUSE).await;
        }
    }
}

/// Mends findings, in the order in which that is safe. Check again afterwards: one repair can show what another has hidden.
pub async fn mend<A, P>(ask: &A, findings: &[Finding], progress: &mut P) -> Result<Mended>
where
    A: AsyncFn(Fsck) -> Result<FsckReply>,
    P: FnMut(Progress),
{
    let mut todo: Vec<_> = findings.iter().filter(|f| !f.cure.is_empty()).collect();
    todo.sort_by_key(|f| f.problem);
    let (mut out, of) = (Mended::default(), todo.len() as u64);
    for (done, f) in todo.into_iter().enumerate() {
        let (wish, finding) = (FsckWish::Mend, Some(f.clone()));
        match (ask)(Fsck { wish, finding, ..Fsck::default() }).await {
            Ok(reply) if reply.mended => out.mended += 1,
            Ok(_) => out.changed += 1,
            Err(e) => out.failed.push((f.clone(), e)),
        }
        progress(Progress { step: "mending", done: done as u64 + 1, of });
    }
    Ok(out)
}
