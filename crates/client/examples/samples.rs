//! Random samples of files in batches, in-process: `samples MGMTD TOKEN_FILE SAMPLE_BYTES COUNT PATH...`
//!
//! Reads `COUNT` samples at random places of the files, 64 at a time in work, as a data loader would, and says how fast that was. No
//! mount is needed; the address and the token's file are those that `glowfs dev status` shows.

use glowfs_client::{Batch, BatchConfig, Client, ClientConfig, Holes, OpenHow};
use glowfs_rt::{Rt, real};
use glowfs_types::wire::meta::OfInode;
use glowfs_types::{Depth, Error, Result, Status};

/// Samples in work at a time, and outstanding.
const IN_WORK: usize = 64;

async fn samples(rt: &Rt, args: &[String]) -> Result<String> {
    let usage = || {
        let usage = "usage: samples MGMTD TOKEN_FILE SAMPLE_BYTES COUNT PATH...";
        Error::new(Status::InvalidArgument, usage)
    };
    let [mgmtd, token, bytes, count, paths @ ..] = args else { return Err(usage()) };
    let bytes: usize = bytes.parse().map_err(|_| usage())?;
    let count: usize = count.parse().map_err(|_| usage())?;
    let token = std::fs::read_to_string(token).map_err(Error::from)?.trim().to_owned();
    let config = ClientConfig { mgmtd: vec![mgmtd.clone()], token, ..ClientConfig::default() };
    let client = Client::connect(rt, config.on_this_host()).await?;
    let mut files = Vec::new();
    for path in paths {
        let file = client.open_path(path, &OpenHow { read: true, ..OpenHow::default() }).await?;
        let ask = OfInode { caller: file.access().caller.clone(), inode: file.inode() };
        files.push((file, client.getattr(ask).await?.attr.len));
    }
    if files.is_empty() {
        return Err(usage());
    }
    let depth =
        BatchConfig { entries: IN_WORK, depth: Depth(-(IN_WORK as i32)), ..BatchConfig::default() };
    let batch = Batch::new(&client, depth)?;
    let mut spare: Vec<_> = (0..IN_WORK).map(|_| rt.alloc(bytes)).collect();
    let (mut asked, mut done, mut read) = (0, 0, 0);
    let began = rt.now();
    while done < count {
        while asked < count {
            let Some(buf) = spare.pop() else { break };
            let (file, len) = &files[rt.random() as usize % files.len()];
            let at = rt.random() % len.saturating_sub(bytes as u64).max(1);
            batch.prepare_read(file, at, buf, Holes::Zeros, asked as u64).map_err(|(e, _)| e)?;
            asked += 1;
        }
        batch.submit();
        // Whatever is there by then makes room for as many again.
        for completion in batch.wait(1, None).await {
            read += completion.result?;
            spare.extend(completion.buf);
            done += 1;
        }
    }
    let secs = rt.now().since(began).as_secs_f64();
    client.close().await;
    let (per_s, mib_per_s) = (count as f64 / secs, read as f64 / secs / f64::from(1 << 20));
    Ok(format!("{count} samples of {bytes} bytes: {per_s:.0} a second, {mib_per_s:.1} MiB/s"))
}

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match real::run(|rt| async move { samples(&rt, &args).await }) {
        Ok(said) => println!("{said}"),
        Err(e) => {
            eprintln!("{e}");
            return std::process::ExitCode::FAILURE;
        }
    }
    std::process::ExitCode::SUCCESS
}
